from __future__ import annotations

import fcntl
from pathlib import Path

import pytest
from fake_weights_hub import DATA, TINY

from antwort.models.embedded.weights import (
    CACHE_VARIABLE,
    CATALOGUE,
    DEFAULT_MODEL,
    WeightsCache,
    WeightsError,
    WeightsMissing,
    WrongHash,
    find_weights,
    format_size,
    get_weights,
    sha256_of,
)


def write_partial(cache: WeightsCache, content: bytes, suffix: str = "part") -> Path:
    cache.folder.mkdir(parents=True, exist_ok=True)
    path = cache.partial_path(TINY, suffix)
    path.write_bytes(content)
    return path


def test_a_verified_file_is_stored_and_partial_files_are_removed(cache):
    part, other = write_partial(cache, DATA), write_partial(cache, b"half", "joined")
    cache.partial_path(TINY, "wheel").mkdir()
    hashed: list[int] = []

    assert cache.verify_and_store(TINY, part, hashed.append) == cache.path(TINY)
    assert cache.path(TINY).read_bytes() == DATA
    assert sum(hashed) == len(DATA)
    assert not part.exists()
    assert not other.exists()
    assert not cache.partial_path(TINY, "wheel").exists()
    assert cache.has(TINY)


def test_a_file_with_a_wrong_hash_is_deleted(cache):
    part = write_partial(cache, DATA[:-1] + b"!")

    with pytest.raises(WrongHash, match="SHA-256"):
        cache.verify_and_store(TINY, part)
    assert not part.exists()
    assert not cache.has(TINY)


def test_a_truncated_file_is_not_installed(cache):
    write_partial(cache, b"")
    cache.path(TINY).write_bytes(DATA[:-1])

    assert not cache.has(TINY)


def test_remove_deletes_partial_downloads_but_not_the_lock(cache):
    write_partial(cache, b"abc")
    cache.partial_path(TINY, "wheel").mkdir()

    assert cache.partial_size(TINY) == 3
    with cache.lock(TINY):
        assert cache.remove(TINY)
        assert [path.name for path in cache.folder.iterdir()] == ["tiny.gguf.lock"]
        assert not cache.remove(TINY)
        with cache.partial_path(TINY, "lock").open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_an_unwritable_folder_is_an_error_that_names_the_variable(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(WeightsError, match=CACHE_VARIABLE), WeightsCache(tmp_path / "file" / "models").lock(TINY):
        pass


def test_the_folder_is_in_the_user_cache_or_from_the_variable(tmp_path):
    assert WeightsCache(environment={CACHE_VARIABLE: str(tmp_path)}).folder == tmp_path
    assert WeightsCache(environment={}).folder.parts[-2:] == ("antwort", "models")


def test_find_weights_accepts_a_path_or_a_name(cache, tmp_path):
    file = tmp_path / "mine.gguf"
    file.write_bytes(b"")

    assert find_weights(str(file), cache) == file
    with pytest.raises(WeightsMissing, match="does not exist"):
        find_weights(str(tmp_path / "none.gguf"), cache)
    with pytest.raises(WeightsError, match="Known: qwen"):
        find_weights("gpt-6", cache)


def test_missing_weights_are_an_error_that_lists_the_options(cache):
    with pytest.raises(WeightsMissing) as caught:
        find_weights(None, cache)

    for option in (f"`antwort model pull {DEFAULT_MODEL}`", "--file FILE", "kind: chat_completions"):
        assert option in str(caught.value)


def test_the_catalogue_is_complete():
    assert DEFAULT_MODEL in CATALOGUE
    for name, weights in CATALOGUE.items():
        assert get_weights(name) == weights
        assert len(bytes.fromhex(weights.sha256)) == 32
        assert weights.packages.project.format(1) != weights.packages.project


def test_sizes_and_hashes(tmp_path):
    (tmp_path / "x").write_bytes(DATA)

    assert sha256_of(tmp_path / "x") == TINY.sha256
    assert (format_size(1_117_320_768), format_size(491_400_064)) == ("1.1 GB", "491 MB")
