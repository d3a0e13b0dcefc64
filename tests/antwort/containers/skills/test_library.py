from __future__ import annotations

import base64
import io
import zipfile

import pytest

from antwort.api.errors import ApiError
from antwort.api.tools import InlineSkill, SkillArchive, SkillReference
from antwort.containers.skills.bundle import read_archive
from antwort.containers.skills.library import SkillLibrary
from antwort.engine.stores import ContainerSkill, Owner, SkillQuota
from antwort.storage import open_store

OWNER = Owner("one", "")


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def library(tmp_path):
    store = await open_store(f"sqlite:///{tmp_path}/a.db", tmp_path / "blobs")
    yield SkillLibrary(store, SkillQuota(10, 10, 1 << 20))
    await store.aclose()


def archive(text: str = "") -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as opened:
        opened.writestr("SKILL.md", f"---\nname: tea\ndescription: Makes tea.\n---\n{text}")
    return written.getvalue()


@pytest.mark.anyio
async def test_a_reference_is_loaded_in_the_version_that_it_was_resolved_to(library):
    created = await library.create(OWNER, read_archive(archive("1"), "files"))
    (resolved,) = await library.resolve(OWNER, [SkillReference(created.id)], "skills")
    changed = read_archive(archive("2"), "files")
    await library.add_version(OWNER, created.id, changed, is_default=True)

    (loaded,) = await library.load(OWNER, [resolved])
    assert (loaded.name, loaded.description) == (resolved.name, resolved.description) == ("tea", "Makes tea.")
    assert resolved.is_in([ContainerSkill("tea", "Makes tea.", changed.archive), loaded])
    assert not resolved.is_in([ContainerSkill("tea", "Makes tea.", changed.archive)])
    await library.delete_version(OWNER, created.id, "1")
    with pytest.raises(ApiError, match="not found"):
        await library.load(OWNER, [resolved])


@pytest.mark.anyio
async def test_an_inline_skill_is_read_again_as_it_was(library):
    data = base64.b64encode(archive()).decode()
    inline = InlineSkill("coffee", "Makes coffee.", SkillArchive(media_type="application/zip", data=data))
    (resolved,) = await library.resolve(OWNER, [inline], "skills")
    loaded = await library.load(OWNER, [resolved])

    assert resolved.is_in(loaded)
    assert loaded[0].name == "coffee"
    assert await library.read_all(OWNER, [inline], "skills") == loaded
