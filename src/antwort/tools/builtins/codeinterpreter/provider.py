"""Makes the code interpreter ready for a response: which container, which files, and what is wrong with either.

A container is made when the model begins its first call, and gets a sandbox when that call
is run: a response that never runs code costs nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec

from antwort.api.errors import ApiError, invalid
from antwort.api.items import ContainerFileCitation
from antwort.api.tools import AutoContainer, CodeInterpreterTool, ToolDeclaration
from antwort.config import CodeInterpreterSettings
from antwort.containers.containers import AUTO, Containers, ContainerWish, Executed
from antwort.containers.contents import Shelves
from antwort.containers.sandboxes.port import Output, SandboxLost, SandboxRefused, SandboxTrouble
from antwort.engine.attachments import decoded
from antwort.engine.ports import (
    ContainerFileRecord,
    ContainerRecord,
    FileStore,
    FunctionSpec,
    HostedCall,
    PageQuery,
    StoreFault,
    ToolContext,
)
from antwort.tools.builtins.codeinterpreter.attachments import (
    Attachment,
    attached,
    containers_of,
    name_for,
    since_last_use,
)
from antwort.tools.builtins.codeinterpreter.call import CodeCall
from antwort.tools.builtins.codeinterpreter.citations import cite
from antwort.tools.builtins.codeinterpreter.results import Result, came_to, could_not_run
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
        store: Shelves,
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
        names = await self._expected(context, wish, param)
        bench = CodeBench(self._containers, self._store, self._settings, context, wish, record)
        if record is not None:
            page = await self._store.list_container_files(context.owner, record.id, PageQuery(limit=_LISTED))
            bench.know(page.data if page else ())
        bench.expect(names)
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

    async def _expected(self, context: ToolContext, wish: AutoContainer, param: str) -> list[str]:
        """Names of the files that this request brings. One that is declared and does not exist is an error."""
        declared = [await self._name_of(context, one, f"{param}.file_ids") for one in wish.file_ids or ()]
        given = [one.file for one in attached(context.given)]
        records = [await self._store.get_file(context.owner, one.file_id) for one in given if one.file_id is not None]
        inline = [name_for(one) for one in given if one.file_id is None and one.file_data is not None]
        return [*declared, *(record.filename for record in records if record is not None), *inline]

    async def _name_of(self, context: ToolContext, file_id: str, param: str) -> str:
        record = await self._store.get_file(context.owner, file_id)
        if record is None:
            raise invalid(f"File with id '{file_id}' not found.", param=param)
        return record.filename


class CodeBench:
    """The code interpreter of one response: one container, and what its calls have made there."""

    takes_files = True

    def __init__(
        self,
        containers: Containers,
        files: FileStore,
        settings: CodeInterpreterSettings,
        context: ToolContext,
        wish: AutoContainer,
        record: ContainerRecord | None,
    ) -> None:
        self._containers = containers
        self._uploads = files
        self._settings = settings
        self._context = context
        self._wish = wish
        self._record = record
        self._empty = record is None or record.sandbox is None
        """Nothing is in the container: no call has run there, or what it had is lost."""
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

    async def run(self, arguments: Arguments) -> AsyncGenerator[Output | Result, None]:
        """What the code prints, then what it came to; whatever happens, the model can go on from it."""
        try:
            record = await self._container()
            await self._fill(record)
            running = self._containers.execute(
                self._context.owner, record.id, arguments.code, requirements=arguments.requirements
            )
            async with aclosing(running) as steps:
                async for step in steps:
                    yield step if isinstance(step, Output) else self._result(step, record)
        except SandboxLost as lost:
            self._forget()
            yield could_not_run(f"The sandbox was lost before the code had ended. {lost} {_LOST}")
        except SandboxRefused as refused:
            yield could_not_run(f"The code was not run: {refused}")
        except SandboxTrouble as trouble:
            yield could_not_run(f"The code was not run: {trouble} Try again later, or answer without running code.")
        except ApiError as error:
            yield could_not_run(f"The code was not run: {error.message}")
        except StoreFault:
            yield could_not_run("The code may have run, but what came of it could not be kept. Try again later.")

    async def _container(self) -> ContainerRecord:
        if self._record is None:
            wish = ContainerWish(name=AUTO, memory_limit=self._wish.memory_limit)
            self._record = await self._containers.create(self._context.owner, wish)
        return self._record

    async def _fill(self, record: ContainerRecord) -> None:
        """Copy the files of this history into the container, once; those that are there already stay as they are."""
        if self._filled:
            return
        history = self._context.history
        if ids := await self._file_ids():
            brought = await self._containers.bring(self._context.owner, record.id, ids)
            self._files.update((file.path, file) for file in brought)
        for attachment in attached(history if self._empty else since_last_use(history, record.id)):
            if attachment.file.file_id is None and attachment.file.file_data is not None:
                await self._put(record, attachment)
        self._filled, self._anew, self._empty = True, self._empty, False

    async def _file_ids(self) -> list[str]:
        """Uploaded files that were declared or attached. One that was deleted since is no reason to run nothing."""
        named = [one.file.file_id for one in attached(self._context.history) if one.file.file_id is not None]
        ids = dict.fromkeys([*(self._wish.file_ids or ()), *named])
        return [one for one in ids if await self._uploads.get_file(self._context.owner, one) is not None]

    async def _put(self, record: ContainerRecord, attachment: Attachment) -> None:
        try:
            data = decoded(attachment.file.file_data or "", attachment.place)
        except ApiError:
            return  # of an earlier request, which was told
        name = name_for(attachment.file)
        file = await self._containers.add_file(self._context.owner, record.id, name, _whole(data))
        self._files[file.path] = file

    def _result(self, executed: Executed, record: ContainerRecord) -> Result:
        if executed.replaced and not self._anew:
            self._forget()  # the call itself has found out: what was copied before it is gone, too
        for file in executed.files:
            self._files[file.path] = self._made[file.path] = file
        if not executed.outcome.alive:
            self._forget()
        return came_to(
            executed.outcome,
            executed.files,
            seconds=self._settings.execution_timeout,
            tier=record.memory_limit,
            most=self._settings.max_output_size,
            restarted=executed.replaced,
        )

    def _forget(self) -> None:
        """The sandbox is gone, and so is what was in it: what the user gave is copied anew."""
        self._filled, self._empty, self._files, self._made = False, True, {}, {}


async def _whole(data: bytes) -> AsyncIterator[bytes]:
    yield data
