from __future__ import annotations

import stat

import pytest

from antwort.storage import UnusableStore, open_store

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
