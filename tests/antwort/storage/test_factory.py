from __future__ import annotations

import asyncio
import sqlite3
import stat
from contextlib import closing

import pytest

from antwort.storage import UnusableStore, inspect_store, open_store

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("url", ["mysql://user:hunter2@host/db", "antwort.db", "", "sqlite://", "sqlite:///:memory:"])
async def test_an_unsupported_url_is_an_error_that_names_the_supported_form(url, tmp_path):
    with pytest.raises(UnusableStore, match=r"Write `storage\.url` as `sqlite:///path/to/antwort\.db`") as error:
        await open_store(url, tmp_path)

    assert "hunter2" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


async def test_missing_files_are_created_with_private_permissions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = await open_store("sqlite:///.antwort/antwort.db", tmp_path / ".antwort" / "blobs")
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / ".antwort").iterdir()}
    await store.aclose()

    assert modes.pop("blobs") == 0o700
    assert set(modes.values()) == {0o600}
    assert "antwort.db" in modes


async def test_an_unusable_path_is_named_in_the_error(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(UnusableStore, match="file"):
        await open_store(f"sqlite:///{tmp_path}/file/antwort.db", tmp_path / "blobs")


def inspect(directory, name="antwort.db"):
    return inspect_store(f"sqlite:///{directory / name}", directory / "blobs")


def names(directory):
    return sorted(file.name for file in directory.rglob("*"))


async def test_inspect_creates_nothing_and_reports_the_lock_holder(tmp_path):
    assert await asyncio.to_thread(inspect, tmp_path / "new" / "deep") == "will be created on the first start"
    assert names(tmp_path) == []

    store = await open_store(f"sqlite:///{tmp_path}/antwort.db", tmp_path / "blobs")
    before = names(tmp_path)
    assert (await asyncio.to_thread(inspect, tmp_path)).startswith("ok, in use by another antwort (process ")
    assert names(tmp_path) == before
    await store.aclose()

    before = {file: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
    assert await asyncio.to_thread(inspect, tmp_path) == "ok"
    assert {file: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()} == before


def test_inspect_raises_for_a_store_that_cannot_be_opened(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(UnusableStore, match="file is not writable"):
        inspect(tmp_path / "file")
    (tmp_path / "garbage.db").write_text("not a database, and longer than SQLite's header check needs")
    with pytest.raises(UnusableStore, match=r"Cannot read .*garbage\.db"):
        inspect(tmp_path, "garbage.db")
    with closing(sqlite3.connect(tmp_path / "foreign.db")) as foreign:
        foreign.execute("CREATE TABLE responses (x)")
    with pytest.raises(UnusableStore, match="another program"):
        inspect(tmp_path, "foreign.db")
    with pytest.raises(UnusableStore, match="not supported"):
        inspect_store("mysql://host/db", tmp_path)
