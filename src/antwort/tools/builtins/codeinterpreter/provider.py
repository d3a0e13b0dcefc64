"""Provider of the code interpreter tool: validates its declaration and selects the container of a response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from antwort.api.errors import invalid, unsupported_value
from antwort.api.items import Item
from antwort.api.tools import AutoContainer, CodeInterpreterTool, ToolDeclaration
from antwort.config import CodeInterpreterSettings
from antwort.containers.containers import Containers
from antwort.containers.files import ContainerAndFileStore, unknown_file
from antwort.containers.paths import path_for
from antwort.engine.ports import ToolContext
from antwort.engine.stores import ContainerFileRecord, ContainerRecord, FileRecord, PageQuery
from antwort.tools.builtins.codeinterpreter.attachments import attached_files, containers_in, with_names
from antwort.tools.builtins.codeinterpreter.prepared import PreparedCodeInterpreter
from antwort.tools.builtins.codeinterpreter.types import NAME

_MAX_KNOWN_FILES: Final = 100


class CodeInterpreterProvider:
    """`FunctionProvider` of `code_interpreter`."""

    name = NAME
    tools = (NAME,)

    def __init__(
        self,
        containers: Containers,
        store: ContainerAndFileStore,
        settings: CodeInterpreterSettings,
        tiers: Sequence[str],
    ) -> None:
        self._containers = containers
        self._store = store
        self._settings = settings
        self._tiers = tiers

    def routes(self) -> Sequence[Any]:
        return ()

    def metrics(self) -> Sequence[Any]:
        """None: `Containers` has the metrics of executions."""
        return ()

    async def aclose(self) -> None:
        """Holds nothing: containers outlive responses."""

    async def prepare(self, tool: ToolDeclaration, param: str, context: ToolContext) -> PreparedCodeInterpreter:
        assert isinstance(tool, CodeInterpreterTool)  # noqa: S101 - the only type in `tools`
        param = f"{param}.container"
        auto = tool.container if isinstance(tool.container, AutoContainer) else AutoContainer()
        self._check(auto, param)
        record = await self._find_container(tool, context)
        declared = [await self._declared(context, file_id, f"{param}.file_ids") for file_id in auto.file_ids or ()]
        known: Sequence[ContainerFileRecord] = ()
        if record is not None:
            page = await self._store.list_container_files(context.owner, record.id, PageQuery(limit=_MAX_KNOWN_FILES))
            known = page.data if page else ()
        has_content = record is not None and record.sandbox is not None
        missing = context.given if has_content else context.history  # items whose files are not in the container yet
        uploads = [*declared, *await self._attached(context, missing)]
        prepared = PreparedCodeInterpreter(
            self._containers,
            self._store,
            self._settings,
            context,
            None if isinstance(tool.container, str) else auto,
            record,
            is_stateful=await self._containers.is_stateful(),
            known_files=known,
            expected_names=_expected_names(known, uploads, missing, images=context.images_are_files),
        )
        if containers_in(context.made):
            recent = [file for file in known if file.source == "assistant" and file.created_at >= context.created_at]
            prepared.continue_from(recent)
        return prepared

    def _check(self, auto: AutoContainer, param: str) -> None:
        if auto.memory_limit is not None and auto.memory_limit not in self._tiers:
            raise unsupported_value(auto.memory_limit, self._tiers, f"{param}.memory_limit")
        if auto.network_policy is not None and auto.network_policy.type != "disabled":
            raise invalid("Containers of this server have no network.", param=f"{param}.network_policy")

    async def _find_container(self, tool: CodeInterpreterTool, context: ToolContext) -> ContainerRecord | None:
        """The existing container that the calls will run in: the named one, or the last one of the history."""
        if isinstance(tool.container, str):
            return await self._containers.require(context.owner, tool.container)
        newest = await self._containers.newest_live(context.owner, containers_in(context.history))
        wanted = tool.container.memory_limit
        return newest if newest is not None and wanted in (None, newest.memory_limit) else None

    async def _attached(self, context: ToolContext, items: Sequence[Item]) -> list[FileRecord]:
        ids = [attachment.file.file_id for attachment in attached_files(items, images=context.images_are_files)]
        found = [await self._store.get_file(context.owner, file_id) for file_id in ids if file_id is not None]
        return [record for record in found if record is not None]

    async def _declared(self, context: ToolContext, file_id: str, param: str) -> FileRecord:
        record = await self._store.get_file(context.owner, file_id)
        if record is None:
            raise unknown_file(file_id, param)
        return record


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
