from __future__ import annotations

import fcntl
from pathlib import Path

import pytest
from fake_weights_hub import DATA, TINY

from antwort.models.embedded.weights import (
    CATALOGUE,
    DEFAULT,
    PLACE,
    Cache,
    Missing,
    WeightsError,
    WrongHash,
    find,
    known,
    sha256_of,
    shown,
)


def put(cache: Cache, content: bytes, what: str = "part") -> Path:
    cache.folder.mkdir(parents=True, exist_ok=True)
    path = cache.beside(TINY, what)
    path.write_bytes(content)
    return path


def test_what_is_whole_and_right_is_kept_and_what_was_left_beside_it_is_not(cache):
    part, other = put(cache, DATA), put(cache, b"half", "joined")
    cache.beside(TINY, "wheel").mkdir()
    seen: list[int] = []

    assert cache.keep(TINY, part, seen.append) == cache.path(TINY)
    assert cache.path(TINY).read_bytes() == DATA
    assert sum(seen) == len(DATA)
    assert not part.exists()
    assert not other.exists()
    assert not cache.beside(TINY, "wheel").exists()
    assert cache.has(TINY)


def test_a_wrong_hash_is_refused_and_the_file_removed(cache):
    part = put(cache, DATA[:-1] + b"!")

    with pytest.raises(WrongHash, match="SHA-256"):
        cache.keep(TINY, part)
    assert not part.exists()
    assert not cache.has(TINY)


def test_a_file_that_is_too_short_is_not_here(cache):
    put(cache, b"")
    cache.path(TINY).write_bytes(DATA[:-1])

    assert not cache.has(TINY)


def test_removing_takes_what_broken_downloads_have_left_and_no_lock(cache):
    put(cache, b"abc")
    cache.beside(TINY, "wheel").mkdir()

    assert cache.begun(TINY) == 3
    with cache.locked(TINY):
        assert cache.remove(TINY)
        assert [path.name for path in cache.folder.iterdir()] == ["tiny.gguf.lock"]
        assert not cache.remove(TINY)
        with cache.beside(TINY, "lock").open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_folder_that_cannot_be_made_is_an_error_that_names_the_variable(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(WeightsError, match=PLACE), Cache(tmp_path / "file" / "models").locked(TINY):
        pass


def test_the_cache_is_the_users_unless_a_variable_names_another(tmp_path):
    assert Cache(environment={PLACE: str(tmp_path)}).folder == tmp_path
    assert Cache(environment={}).folder.parts[-2:] == ("antwort", "models")


def test_a_model_is_found_by_its_name_or_its_file(cache, tmp_path):
    file = tmp_path / "mine.gguf"
    file.write_bytes(b"")

    assert find(str(file), cache) == file
    with pytest.raises(Missing, match="no file"):
        find(str(tmp_path / "none.gguf"), cache)
    with pytest.raises(WeightsError, match="Known: qwen"):
        find("gpt-6", cache)


def test_without_weights_the_error_names_three_ways_to_go_on(cache):
    with pytest.raises(Missing) as caught:
        find(None, cache)

    for way in (f"`antwort model pull {DEFAULT}`", "--file FILE", "kind: chat_completions"):
        assert way in str(caught.value)


def test_the_catalogue_is_complete():
    assert DEFAULT in CATALOGUE
    for name, weights in CATALOGUE.items():
        assert known(name) == weights
        assert len(bytes.fromhex(weights.sha256)) == 32
        assert weights.pieces.project.format(1) != weights.pieces.project


def test_sizes_and_hashes(tmp_path):
    (tmp_path / "x").write_bytes(DATA)

    assert sha256_of(tmp_path / "x") == TINY.sha256
    assert (shown(1_117_320_768), shown(491_400_064)) == ("1.1 GB", "491 MB")
