"""Makes the code interpreter ready for a response: which container, which files, and what is wrong with either.

A container is made when the model begins its first call, and gets a sandbox when that call
is run: a response that never runs code costs nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from typing import Any, Final

import msgspec

from antwort.api.errors import ApiError, invalid
from antwort.api.items import ContainerFileCitation, Item
from antwort.api.tools import AutoContainer, CodeInterpreterTool, ToolDeclaration
from antwort.config import CodeInterpreterSettings
from antwort.containers.containers import AUTO, Containers, ContainerSpec, Executed
from antwort.containers.files import ContainerAndFileStore
from antwort.containers.paths import place_for
from antwort.containers.registry import gone
from antwort.containers.sandboxes.port import Output, SandboxLost, SandboxRefused, SandboxTrouble
from antwort.engine.attachments import decoded
from antwort.engine.ports import FunctionSpec, HostedCall, ToolContext
from antwort.engine.stores import (
    ContainerFileRecord,
    ContainerRecord,
    FileRecord,
    FileStore,
    PageQuery,
    StoreFault,
)
from antwort.tools.builtins.codeinterpreter.attachments import (
    Attachment,
    attached,
    containers_of,
    named,
    since_last_use,
)
from antwort.tools.builtins.codeinterpreter.call import CodeCall
from antwort.tools.builtins.codeinterpreter.citations import cite
from antwort.tools.builtins.codeinterpreter.results import Result, broke_off, came_to, could_not_run
from antwort.tools.builtins.codeinterpreter.types import NAME, SPEC, Arguments

LIVE: Final = "antwort:code_interpreter_call.live_output"
"""The value of `include` that asks for what code prints, as it prints it."""

_LISTED: Final = 100
_TOLD: Final = 30
_LOST: Final = "Its variables and files are gone; the next call starts in an empty sandbox."


class CodeInterpreter:
    """The provider."""

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

    def offer(self, tool: ToolDeclaration) -> Sequence[FunctionSpec] | None:
        return (SPEC,) if isinstance(tool, CodeInterpreterTool) else None

    def routes(self) -> Sequence[Any]:
        return ()

    def metrics(self) -> Sequence[Any]:
        """Those of containers tell all that there is to count."""
        return ()

    async def aclose(self) -> None:
        """Nothing is held here: containers outlive responses."""

    async def prepare(self, tool: ToolDeclaration, param: str, context: ToolContext) -> CodeBench:
        assert isinstance(tool, CodeInterpreterTool)  # noqa: S101 - nothing else is offered
        param = f"{param}.container"
        wish = tool.container if isinstance(tool.container, AutoContainer) else AutoContainer()
        self._check(wish, param)
        record = await self._found(tool, context)
        by_id = isinstance(tool.container, str)
        bench = CodeBench(self._containers, self._store, self._settings, context, None if by_id else wish, record)
        declared = [await self._declared(context, one, f"{param}.file_ids") for one in wish.file_ids or ()]
        known: Sequence[ContainerFileRecord] = ()
        if record is not None:
            page = await self._store.list_container_files(context.owner, record.id, PageQuery(limit=_LISTED))
            known = page.data if page else ()
        bench.know(known)
        coming = context.given if record is not None and record.sandbox is not None else context.history
        bench.expect(_names(known, [*declared, *await self._attached(context, coming)], coming))
        return bench

    def _check(self, wish: AutoContainer, param: str) -> None:
        if wish.memory_limit is not None and wish.memory_limit not in self._tiers:
            supported = ", ".join(f"'{tier}'" for tier in self._tiers)
            raise invalid(
                f"Invalid value: '{wish.memory_limit}'. Supported values are: {supported}.",
                param=f"{param}.memory_limit",
            )
        if wish.network_policy is not None and wish.network_policy.type != "disabled":
            raise invalid("Containers of this server have no network.", param=f"{param}.network_policy")

    async def _found(self, tool: CodeInterpreterTool, context: ToolContext) -> ContainerRecord | None:
        """The container that the calls will run in, where there is one already."""
        if isinstance(tool.container, str):
            return await self._containers.require(context.owner, tool.container)
        newest = await self._containers.newest_live(context.owner, containers_of(context.history))
        wanted = tool.container.memory_limit
        return newest if newest is not None and wanted in (None, newest.memory_limit) else None

    async def _attached(self, context: ToolContext, items: Sequence[Item]) -> list[FileRecord]:
        ids = [one.file.file_id for one in attached(items) if one.file.file_id is not None]
        found = [await self._store.get_file(context.owner, one) for one in ids]
        return [record for record in found if record is not None]

    async def _declared(self, context: ToolContext, file_id: str, param: str) -> FileRecord:
        record = await self._store.get_file(context.owner, file_id)
        if record is None:
            raise invalid(f"File with id '{file_id}' not found.", param=param)
        return record


def _names(known: Sequence[ContainerFileRecord], uploads: Sequence[FileRecord], items: Sequence[Item]) -> list[str]:
    """How the files will be called that are yet to come: first uploaded ones, then those that came with messages."""
    there = {file.file_id for file in known}
    taken = {file.path for file in known}
    coming: list[str] = []
    for record in {one.id: one for one in uploads if one.id not in there}.values():
        coming.append(place_for(record, taken.__contains__))
        taken.add(coming[-1])
    uploaded = [*coming, *(file.path for file in known if file.file_id is not None)]
    return [*coming, *(name for _, name in named(items, uploaded))]


class CodeBench:
    """The code interpreter of one response: one container, and what its calls have made there."""

    takes_files = True

    def __init__(
        self,
        containers: Containers,
        files: FileStore,
        settings: CodeInterpreterSettings,
        context: ToolContext,
        wish: AutoContainer | None,
        record: ContainerRecord | None,
    ) -> None:
        """Without a `wish` the container was asked for by its id, and no other will do."""
        self._containers = containers
        self._uploads = files
        self._settings = settings
        self._context = context
        self._wish = wish
        self._record = record
        self._empty = record is None or record.sandbox is None
        """Nothing is in the container: no call has run there, or what it had is lost."""
        self._kept = ExitStack()
        self._renewed = False
        """The container before this one is gone, and no call has told so yet."""
        self._filled = False
        self._anew = False
        """It was filled in the knowledge that nothing was in it."""
        self._files: dict[str, ContainerFileRecord] = {}
        self._made: dict[str, ContainerFileRecord] = {}
        self._expected: Sequence[str] = ()

    def know(self, files: Sequence[ContainerFileRecord]) -> None:
        """These are in the container now."""
        self._files = {file.path: file for file in files}

    def expect(self, names: Sequence[str]) -> None:
        """These will be, before anything is run."""
        self._expected = names

    def describe(self, spec: FunctionSpec) -> FunctionSpec:
        """With the names of the files: a model that has to look for them first mostly does not."""
        names = [*dict.fromkeys([*self._expected, *self._files])]
        if not names:
            return spec
        more = f" and {len(names) - _TOLD} more" if len(names) > _TOLD else ""
        return msgspec.structs.replace(spec, now=f"In /mnt/data now: {', '.join(names[:_TOLD])}{more}.")

    async def open(self, name: str, call_id: str) -> HostedCall:
        del name, call_id
        live = LIVE in self._context.include
        try:
            record = await self._container()
        except ApiError as error:
            return CodeCall(self, "", live=live, trouble=f"There is no container to run it in: {error.message}")
        return CodeCall(self, record.id, live=live)

    def annotate(self, text: str) -> Sequence[ContainerFileCitation]:
        return cite(text, self._files.values(), list(self._made.values()))

    @contextmanager
    def at_work(self) -> Generator[None]:
        """However long the model thinks, its container neither expires nor makes room for another."""
        with ExitStack() as self._kept:
            if self._record is not None:
                self._kept.enter_context(self._containers.using(self._context.owner, self._record.id))
            yield

    async def run(self, container_id: str, arguments: Arguments) -> AsyncGenerator[Output | Result, None]:
        """What the code prints, then what it came to; whatever happens, the model can go on from it."""
        record, printed = self._record, list[str]()
        try:
            if record is None or record.id != container_id:
                raise gone(container_id)
            await self._fill(record)
            running = self._containers.execute(
                self._context.owner, record.id, arguments.code, requirements=arguments.requirements
            )
            async with aclosing(running) as steps:
                async for step in steps:
                    if isinstance(step, Output):
                        printed.append(step.text)
                        yield step
                    else:
                        yield self._result(step, record)
        except SandboxLost as lost:
            self._forget()
            reason = f"The sandbox was lost before the code had ended. {lost} {_LOST}"
            yield broke_off("".join(printed), reason, self._settings.max_output_size)
        except SandboxRefused as refused:
            yield could_not_run(f"The code was not run: {refused}")
        except SandboxTrouble as trouble:
            reason = f"The code did not run to its end: {trouble} Try again later, or answer without running code."
            yield broke_off("".join(printed), reason, self._settings.max_output_size)
        except ApiError as error:
            yield could_not_run(f"The code was not run: {error.message}")
        except StoreFault:
            yield could_not_run("The code may have run, but what came of it could not be kept. Try again later.")

    async def _container(self) -> ContainerRecord:
        """For the next call. One that is gone by now, such as a deleted one, is replaced if any would do."""
        owner = self._context.owner
        kept = self._record
        if kept and self._wish is not None and await self._containers.newest_live(owner, [kept.id]) is None:
            self._forget()
            self._record, self._renewed = None, True
        if self._record is None:
            tier = None if self._wish is None else self._wish.memory_limit
            self._record = await self._containers.create(owner, ContainerSpec(name=AUTO, memory_limit=tier))
            self._kept.enter_context(self._containers.using(owner, self._record.id))
        return self._record

    async def _fill(self, record: ContainerRecord) -> None:
        """Copy the files of this history into the container, once; those that are there already stay as they are."""
        if self._filled:
            return
        history = self._context.history
        if ids := await self._file_ids():
            brought = await self._containers.bring(self._context.owner, record.id, ids)
            self._files.update((file.path, file) for file in brought)
        uploaded = [file.path for file in self._files.values() if file.file_id is not None]
        for attachment, name in named(history if self._empty else since_last_use(history, record.id), uploaded):
            await self._put(record, attachment, name)
        self._filled, self._anew, self._empty = True, self._empty, False

    async def _file_ids(self) -> list[str]:
        """Uploaded files that were declared or attached. One that was deleted since is no reason to run nothing."""
        given = [one.file.file_id for one in attached(self._context.history) if one.file.file_id is not None]
        declared = self._wish.file_ids if self._wish is not None else None
        ids = dict.fromkeys([*(declared or ()), *given])
        return [one for one in ids if await self._uploads.get_file(self._context.owner, one) is not None]

    async def _put(self, record: ContainerRecord, attachment: Attachment, name: str) -> None:
        try:
            data = decoded(attachment.file.file_data or "", attachment.place)
        except ApiError:
            return  # of an earlier request, which was told
        file = await self._containers.add_file(self._context.owner, record.id, name, _whole(data))
        self._files[file.path] = file

    def _result(self, executed: Executed, record: ContainerRecord) -> Result:
        if executed.replaced and not self._anew:
            self._forget()  # the call itself has found out: what was copied before it is gone, too
        for file in executed.files:
            self._files[file.path] = self._made[file.path] = file
        if not executed.outcome.alive:
            self._forget()
        renewed, self._renewed = self._renewed, False
        return came_to(
            executed.outcome,
            executed.files,
            seconds=self._settings.execution_timeout,
            tier=record.memory_limit,
            most=self._settings.max_output_size,
            restarted=executed.replaced or renewed,
        )

    def _forget(self) -> None:
        """The sandbox is gone, and so is what was in it: what the user gave is copied anew."""
        self._filled, self._empty, self._files, self._made = False, True, {}, {}


async def _whole(data: bytes) -> AsyncIterator[bytes]:
    yield data
