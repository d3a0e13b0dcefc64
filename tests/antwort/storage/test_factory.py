from __future__ import annotations

import asyncio
import sqlite3
import stat
from contextlib import closing

import pytest

from antwort.storage import UnusableStore, look_at_store, open_store

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "url", ["postgres://user:hunter2@host/db", "antwort.db", "", "sqlite://", "sqlite:///:memory:"]
)
async def test_an_address_that_is_not_supported_says_what_is(url, tmp_path):
    with pytest.raises(UnusableStore, match=r"Write `storage\.url` as `sqlite:///path/to/antwort\.db`") as error:
        await open_store(url, tmp_path)

    assert "hunter2" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


async def test_what_is_missing_is_made_and_is_for_us_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = await open_store("sqlite:///.antwort/antwort.db", tmp_path / ".antwort" / "blobs")
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / ".antwort").iterdir()}
    await store.aclose()

    assert modes.pop("blobs") == 0o700
    assert set(modes.values()) == {0o600}
    assert "antwort.db" in modes


async def test_a_place_that_cannot_be_is_named(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(UnusableStore, match="file"):
        await open_store(f"sqlite:///{tmp_path}/file/antwort.db", tmp_path / "blobs")


def look(place, name="antwort.db"):
    return look_at_store(f"sqlite:///{place / name}", place / "blobs")


def names(place):
    return sorted(file.name for file in place.rglob("*"))


async def test_a_look_makes_nothing_and_sees_who_is_there(tmp_path):
    assert await asyncio.to_thread(look, tmp_path / "new" / "deep") == "made on the first start"
    assert names(tmp_path) == []

    store = await open_store(f"sqlite:///{tmp_path}/antwort.db", tmp_path / "blobs")
    there = names(tmp_path)
    assert (await asyncio.to_thread(look, tmp_path)).startswith("ok, in use by another antwort (process ")
    assert names(tmp_path) == there
    await store.aclose()

    there = {file: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
    assert await asyncio.to_thread(look, tmp_path) == "ok"
    assert {file: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()} == there


def test_a_look_says_what_would_not_work(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(UnusableStore, match="file cannot be written to"):
        look(tmp_path / "file")
    (tmp_path / "garbage.db").write_text("not a database, and long enough for that to be seen")
    with pytest.raises(UnusableStore, match=r"garbage\.db cannot be read"):
        look(tmp_path, "garbage.db")
    with closing(sqlite3.connect(tmp_path / "theirs.db")) as theirs:
        theirs.execute("CREATE TABLE responses (x)")
    with pytest.raises(UnusableStore, match="another program"):
        look(tmp_path, "theirs.db")
    with pytest.raises(UnusableStore, match="not supported"):
        look_at_store("postgres://host/db", tmp_path)
