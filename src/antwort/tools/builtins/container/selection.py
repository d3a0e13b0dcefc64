"""Selection of the container of a response: the one that the request names, the last one of the history, or a new one.

The tools of one response share their container, unless the request names two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from antwort.api.errors import invalid, unsupported_value
from antwort.api.items import Item
from antwort.api.tools import AutoEnvironment, AutoOptions
from antwort.containers.containers import Containers
from antwort.containers.files import ContainerAndFileStore, unknown_file
from antwort.containers.paths import path_for
from antwort.containers.skills.library import ResolvedSkill, SkillLibrary
from antwort.engine.ports import ToolContext
from antwort.engine.stores import ContainerFileRecord, ContainerRecord, ContainerSkill, FileRecord, PageQuery
from antwort.tools.builtins.container.attachments import attached_files, containers_in, with_names
from antwort.tools.builtins.container.container import FoundContainer, ResponseContainer

_MAX_KNOWN_FILES: Final = 100


class ResponseContainers:
    """The containers of the responses that run."""

    def __init__(
        self, containers: Containers, store: ContainerAndFileStore, tiers: Sequence[str], skills: SkillLibrary
    ) -> None:
        self._containers = containers
        self._skills = skills
        self._store = store
        self._tiers = tiers
        self._shared: WeakValueDictionary[tuple[str, str], ResponseContainer] = WeakValueDictionary()
        """By tenant and id of the response: the container of the tools that it declares."""

    async def is_stateful(self) -> bool:
        """Whether containers have an interpreter that keeps its variables."""
        return await self._containers.is_stateful()

    async def prepare(self, wanted: str | AutoOptions, param: str, context: ToolContext) -> ResponseContainer:
        """The container for a tool; `ApiError` that names the field below `param` where it is not possible."""
        if not isinstance(wanted, str):
            self._check(wanted, param)
        key = context.owner.tenant, context.response_id
        shared = self._shared.get(key)
        if shared is not None:
            joined = _joined(shared, wanted, param)
            if joined is None:
                return await self._new(wanted, param, context)
            shared.use(await self._find(joined, param, context))
            return shared
        self._shared[key] = created = await self._new(wanted, param, context)
        return created

    async def _new(self, wanted: str | AutoOptions, param: str, context: ToolContext) -> ResponseContainer:
        container = ResponseContainer(self._containers, self._store, self._skills, context)
        container.use(await self._find(wanted, param, context))
        return container

    def _check(self, auto: AutoOptions, param: str) -> None:
        if auto.memory_limit is not None and auto.memory_limit not in self._tiers:
            raise unsupported_value(auto.memory_limit, self._tiers, f"{param}.memory_limit")
        if auto.network_policy is not None and auto.network_policy.type != "disabled":
            raise invalid("Containers of this server have no network.", param=f"{param}.network_policy")

    async def _find(self, wanted: str | AutoOptions, param: str, context: ToolContext) -> FoundContainer:
        auto = None if isinstance(wanted, str) else wanted
        given = auto.skills if isinstance(auto, AutoEnvironment) else None
        declared_skills = await self._skills.resolve(context.owner, given or (), f"{param}.skills")
        record = await self._record(wanted, declared_skills, context)
        skills = [ContainerSkill(skill.name, skill.description) for skill in declared_skills]
        if record is not None and not skills:
            skills = await self._containers.skills(context.owner, record.id)
        file_ids = auto.file_ids if auto is not None else None
        uploads = [await self._declared(context, file_id, f"{param}.file_ids") for file_id in file_ids or ()]
        known: Sequence[ContainerFileRecord] = ()
        if record is not None:
            page = await self._store.list_container_files(context.owner, record.id, PageQuery(limit=_MAX_KNOWN_FILES))
            known = page.data if page else ()
        has_content = record is not None and record.sandbox is not None
        missing = context.given if has_content else context.history  # items whose files are not in the container yet
        uploads += await self._attached(context, missing)
        recent: list[ContainerFileRecord] | None = None
        if containers_in(context.made):
            recent = [file for file in known if file.source == "assistant" and file.created_at >= context.created_at]
        return FoundContainer(
            auto=auto,
            declared_skills=declared_skills,
            skills=skills,
            record=record,
            known_files=known,
            expected_names=_expected_names(known, uploads, missing, images=context.images_are_files),
            recent_files=recent,
        )

    async def _record(
        self, wanted: str | AutoOptions, skills: Sequence[ResolvedSkill], context: ToolContext
    ) -> ContainerRecord | None:
        """The existing container that the calls will run in: the named one, or the last one of the history.

        One of the history that lacks a skill is not used.
        """
        if isinstance(wanted, str):
            return await self._containers.require(context.owner, wanted)
        newest = await self._containers.newest_live(context.owner, containers_in(context.history))
        if newest is None or wanted.memory_limit not in (None, newest.memory_limit):
            return None
        if skills:
            present = await self._containers.skills(context.owner, newest.id, with_bundles=True)
            if not await asyncio.to_thread(lambda: all(skill.is_in(present) for skill in skills)):
                return None
        return newest

    async def _attached(self, context: ToolContext, items: Sequence[Item]) -> list[FileRecord]:
        ids = [attachment.file.file_id for attachment in attached_files(items, images=context.images_are_files)]
        found = [await self._store.get_file(context.owner, file_id) for file_id in ids if file_id is not None]
        return [record for record in found if record is not None]

    async def _declared(self, context: ToolContext, file_id: str, param: str) -> FileRecord:
        record = await self._store.get_file(context.owner, file_id)
        if record is None:
            raise unknown_file(file_id, param)
        return record


def _joined(shared: ResponseContainer, wanted: str | AutoOptions, param: str) -> str | AutoOptions | None:
    """What two tools of a response want together; None if the request names a container for each of them."""
    earlier = shared.auto
    if isinstance(wanted, str):
        is_same = earlier is not None or (shared.record is not None and shared.record.id == wanted)
        return wanted if is_same else None
    if earlier is None:
        assert shared.record is not None  # noqa: S101 - the one that the request names
        return shared.record.id
    tiers = {tier for tier in (earlier.memory_limit, wanted.memory_limit) if tier is not None}
    if len(tiers) > 1:
        message = "The tools of a response share their container: declare the same 'memory_limit' for them."
        raise invalid(message, param=f"{param}.memory_limit")
    file_ids = [*dict.fromkeys([*(earlier.file_ids or ()), *(wanted.file_ids or ())])]
    both = earlier if isinstance(earlier, AutoEnvironment) else wanted  # only the shell declares skills
    return msgspec.structs.replace(both, memory_limit=next(iter(tiers), None), file_ids=file_ids or None)


def _expected_names(
    known: Sequence[ContainerFileRecord], uploads: list[FileRecord], items: Sequence[Item], *, images: bool
) -> list[str]:
    """The names of the files that will be copied: uploaded files first, then those with inline content."""
    copied = {file.file_id for file in known}
    taken = {file.path for file in known}
    expected: list[str] = []
    for record in {file.id: file for file in uploads if file.id not in copied}.values():
        expected.append(path_for(record, taken.__contains__))
        taken.add(expected[-1])
    uploaded = [*expected, *(file.path for file in known if file.file_id is not None)]
    return [*expected, *(name for _, name in with_names(items, uploaded, images=images))]
