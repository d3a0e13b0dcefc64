"""The code interpreter of one response: its container, the files in it, and the execution of its calls.

The container is created when the model begins its first call, and gets a sandbox when that
call is run: a response that runs no code costs nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

import msgspec

from antwort.api.errors import ApiError
from antwort.api.items import CodeInterpreterCall
from antwort.api.tools import AutoContainer
from antwort.config import CodeInterpreterSettings
from antwort.containers.containers import Containers, ContainerSpec
from antwort.containers.registry import container_not_found
from antwort.containers.sandboxes.port import ExecutionResult, Output, SandboxError, SandboxLost, SandboxRefused
from antwort.engine.attachments import decode_file_data
from antwort.engine.ports import (
    FunctionSpec,
    HostedCall,
    TextAnnotator,
    ToolContext,
    ToolDefaults,
    ToolDone,
    WholeTextAnnotator,
)
from antwort.engine.stores import AUTO_CONTAINER, ContainerFileRecord, ContainerRecord, FileStore, StoreFault
from antwort.tools.builtins.codeinterpreter.attachments import (
    Attachment,
    attached_files,
    items_since_last_use,
    with_names,
)
from antwort.tools.builtins.codeinterpreter.call import CodeCall
from antwort.tools.builtins.codeinterpreter.citations import cite
from antwort.tools.builtins.codeinterpreter.results import STATE_LOST, from_result, interrupted, not_run
from antwort.tools.builtins.codeinterpreter.types import ONE_SHOT_SPEC, SPEC, Arguments

LIVE_OUTPUT: Final = "antwort:code_interpreter_call.live_output"
"""The value of `include` that requests the output of code as it is printed."""

_MAX_DESCRIBED_FILES: Final = 30


class PreparedCodeInterpreter(ToolDefaults):
    """A `PreparedTool`. Without `auto` the request named the container by its id, and no other one is used."""

    reads_files = True

    def __init__(
        self,
        containers: Containers,
        uploads: FileStore,
        settings: CodeInterpreterSettings,
        context: ToolContext,
        auto: AutoContainer | None,
        record: ContainerRecord | None,
        *,
        is_stateful: bool,
        known_files: Sequence[ContainerFileRecord] = (),
        expected_names: Sequence[str] = (),
    ) -> None:
        self._containers = containers
        self._uploads = uploads
        self._settings = settings
        self._context = context
        self._auto = auto
        self._record = record
        self._is_empty = record is None or record.sandbox is None
        """The container has no content: no call has run in it, or its sandbox was lost."""
        self._lease = ExitStack()
        self._container_replaced = False
        """The container before this one is gone, and no call has reported it yet."""
        self._is_filled = False
        self._filled_empty = False
        """It was empty when the files were copied into it."""
        self._files = {file.path: file for file in known_files}
        self._made: dict[str, ContainerFileRecord] = {}
        spec, directory = (SPEC, "/mnt/data") if is_stateful else (ONE_SHOT_SPEC, "the working directory")
        self.specs = (_described(spec, directory, [*dict.fromkeys([*expected_names, *self._files])]),)

    def continue_from(self, made: Sequence[ContainerFileRecord]) -> None:
        """Take over from an earlier process that has run calls of this response. `made` are the files of these."""
        self._container_replaced = self._record is None
        self._made = {file.path: file for file in made}

    async def open(self, name: str, call_id: str, arguments: str) -> HostedCall:
        del name, call_id, arguments
        live_output = LIVE_OUTPUT in self._context.include
        try:
            record = await self._container()
        except (ApiError, StoreFault) as error:
            why = error.message if isinstance(error, ApiError) else "the server cannot store one right now."
            reason = f"There is no container to run it in: {why}"
            return CodeCall(self, "", live_output=live_output, unavailable=reason)
        return CodeCall(self, record.id, live_output=live_output)

    def annotator(self) -> TextAnnotator:
        return WholeTextAnnotator(lambda text: cite(text, self._files.values(), list(self._made.values())))

    @contextmanager
    def lease(self) -> Generator[None]:
        """Keep the container in use: it neither expires nor is evicted while the model generates."""
        with ExitStack() as self._lease:
            if self._record is not None:
                self._lease.enter_context(self._containers.using(self._context.owner, self._record.id))
            yield

    # ── the execution of a call ──────────────────────────────────────────────────────────────────────────────────────

    async def start(self, container_id: str, arguments: Arguments) -> AsyncGenerator[Output | ExecutionResult, None]:
        """Copy the files of the history into the container, and start the execution."""
        record = self._record
        if record is None or record.id != container_id:
            raise container_not_found(container_id)
        await self._fill(record)
        owner, requirements = self._context.owner, arguments.requirements
        return self._containers.execute(owner, record.id, arguments.code, requirements=requirements)

    def succeeded(self, call: CodeInterpreterCall, result: ExecutionResult) -> ToolDone:
        if result.sandbox_replaced and not self._filled_empty:
            self._forget_files()  # the files that were copied before this execution are gone, too
        for file in result.files:
            self._files[file.path] = self._made[file.path] = file
        if not result.sandbox_alive:
            self._forget_files()
        container_replaced, self._container_replaced = self._container_replaced, False
        return from_result(
            call,
            result,
            timeout=self._settings.execution_timeout,
            tier="" if self._record is None else self._record.memory_limit,
            max_bytes=self._settings.max_output_size,
            sandbox_restarted=result.sandbox_replaced or container_replaced,
        )

    def failed(self, call: CodeInterpreterCall, error: Exception, printed: str) -> ToolDone:
        max_bytes = self._settings.max_output_size
        match error:
            case SandboxLost():
                self._forget_files()
                reason = f"The sandbox was lost before the code had ended. {error} {STATE_LOST}"
                return interrupted(call, printed, reason, max_bytes)
            case SandboxRefused():
                return not_run(call, f"The code was not run: {error}")
            case SandboxError():
                reason = f"The code did not run to its end: {error} Try again later, or answer without running code."
                return interrupted(call, printed, reason, max_bytes)
            case ApiError():
                return not_run(call, f"The code was not run: {error.message}")
            case _:
                return not_run(call, "The code may have run, but its result could not be stored. Try again later.")

    # ── the container ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _container(self) -> ContainerRecord:
        """The container of the next call. An `auto` container that is gone, such as a deleted one, is replaced."""
        owner = self._context.owner
        current = self._record
        if current and self._auto is not None and await self._containers.newest_live(owner, [current.id]) is None:
            self._forget_files()
            self._record, self._container_replaced = None, True
        if self._record is None:
            tier = None if self._auto is None else self._auto.memory_limit
            self._record = await self._containers.create(owner, ContainerSpec(name=AUTO_CONTAINER, memory_limit=tier))
            self._lease.enter_context(self._containers.using(owner, self._record.id))
        return self._record

    async def _fill(self, record: ContainerRecord) -> None:
        """Copy the files of the history into the container, once; those that were copied before stay as they are."""
        if self._is_filled:
            return
        history = self._context.history
        if ids := await self._file_ids():
            copied = await self._containers.ensure_files(self._context.owner, record.id, ids)
            self._files.update((file.path, file) for file in copied)
        uploaded = [file.path for file in self._files.values() if file.file_id is not None]
        items = history if self._is_empty else items_since_last_use(history, record.id)
        for attachment, name in with_names(items, uploaded, images=self._context.images_are_files):
            await self._add_attachment(record, attachment, name)
        self._is_filled, self._filled_empty, self._is_empty = True, self._is_empty, False

    async def _file_ids(self) -> list[str]:
        """Uploaded files that were declared or attached. One that was deleted meanwhile is skipped."""
        files = attached_files(self._context.history, images=self._context.images_are_files)
        attached = [attachment.file.file_id for attachment in files]
        declared = self._auto.file_ids if self._auto is not None else None
        ids = dict.fromkeys([*(declared or ()), *filter(None, attached)])
        return [file_id for file_id in ids if await self._uploads.get_file(self._context.owner, file_id) is not None]

    async def _add_attachment(self, record: ContainerRecord, attachment: Attachment, name: str) -> None:
        try:
            data = decode_file_data(attachment.file.file_data or "", attachment.location.param)
        except ApiError:
            return  # of an earlier request, which got the error
        file = await self._containers.add_file(self._context.owner, record.id, name, _one_chunk(data))
        self._files[file.path] = file

    def _forget_files(self) -> None:
        """The sandbox is gone with its content: the user's files are copied again before the next call."""
        self._is_filled, self._is_empty, self._files, self._made = False, True, {}, {}


def _described(spec: FunctionSpec, directory: str, names: Sequence[str]) -> FunctionSpec:
    """The spec with the names of the files: most models do not list the directory by themselves."""
    if not names:
        return spec
    more = f" and {len(names) - _MAX_DESCRIBED_FILES} more" if len(names) > _MAX_DESCRIBED_FILES else ""
    listed = ", ".join(names[:_MAX_DESCRIBED_FILES])
    return msgspec.structs.replace(spec, current_state=f"In {directory} now: {listed}{more}.")


async def _one_chunk(data: bytes) -> AsyncIterator[bytes]:
    yield data
