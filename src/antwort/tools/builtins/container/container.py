"""The container of one response: its record, the files in it, and the programs that tools run in it.

It is created when the model begins its first call, and gets a sandbox when that call is run: a
response that runs nothing costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

import msgspec
from msgspec import Struct

from antwort.api.errors import ApiError
from antwort.api.tools import AutoOptions
from antwort.containers.containers import Containers, ContainerSpec
from antwort.containers.registry import container_not_found
from antwort.containers.sandboxes.port import (
    ExecutionResult,
    Output,
    PythonCode,
    SandboxError,
    SandboxLost,
    ShellCommand,
)
from antwort.containers.skills.library import ResolvedSkill, SkillLibrary
from antwort.engine.attachments import decode_file_data
from antwort.engine.ports import FunctionSpec, TextAnnotator, ToolContext, WholeTextAnnotator
from antwort.engine.stores import (
    AUTO_CONTAINER,
    ContainerFileRecord,
    ContainerRecord,
    ContainerSkill,
    FileStore,
    StoreFault,
)
from antwort.tools.builtins.container.attachments import (
    Attachment,
    attached_files,
    is_listed,
    items_since_last_use,
    with_names,
)
from antwort.tools.builtins.container.citations import cite

STATE_LOST: Final = "Its variables and files are gone; the next call starts in an empty sandbox."

_MAX_DESCRIBED_FILES: Final = 30


class FoundContainer(Struct, frozen=True, kw_only=True):
    """The container that the calls of a response will use, as far as it is known before them."""

    auto: AutoOptions | None
    """How a new container is made. None if the request named the container by its id: then no other one is used."""
    record: ContainerRecord | None
    declared_skills: Sequence[ResolvedSkill] = ()
    skills: Sequence[ContainerSkill] = ()
    """Those that the request declares, else those of the container; without their archives."""
    known_files: Sequence[ContainerFileRecord] = ()
    expected_names: Sequence[str] = ()
    """The names of files that will be copied into it."""
    recent_files: Sequence[ContainerFileRecord] | None = None
    """Set if an earlier process has run calls of this response: the files that they have made."""


class ResponseContainer:
    """The container that the tools of one response share."""

    def __init__(self, containers: Containers, uploads: FileStore, library: SkillLibrary, context: ToolContext) -> None:
        self._containers = containers
        self._uploads = uploads
        self._library = library
        self._context = context
        self._lease = ExitStack()
        self._leases = 0
        self._opening = asyncio.Lock()
        self._annotates = False

    def use(self, found: FoundContainer) -> None:
        """Take over what is known of the container, before any call."""
        record = found.record
        self.auto = found.auto
        self.record = record
        self.skills = found.skills
        self._declared_skills = found.declared_skills
        self._is_empty = record is None or record.sandbox is None
        """The container has no content: no call has run in it, or its sandbox was lost."""
        self._container_replaced = False
        """The container before this one is gone, and no call has reported it yet."""
        self._is_filled = False
        self._filled_empty = False
        """It was empty when the files were copied into it."""
        self._files = {file.path: file for file in found.known_files}
        self._made: dict[str, ContainerFileRecord] = {}
        self._names = [*filter(is_listed, dict.fromkeys([*found.expected_names, *self._files]))]
        if found.recent_files is not None:
            self._container_replaced = record is None
            self._made = {file.path: file for file in found.recent_files}

    @property
    def memory_limit(self) -> str:
        return "" if self.record is None else self.record.memory_limit

    def described(self, spec: FunctionSpec, directory: str) -> FunctionSpec:
        """The spec with the names of the files: most models do not list the directory by themselves."""
        names = self._names
        if not names:
            return spec
        more = f" and {len(names) - _MAX_DESCRIBED_FILES} more" if len(names) > _MAX_DESCRIBED_FILES else ""
        listed = ", ".join(names[:_MAX_DESCRIBED_FILES])
        return msgspec.structs.replace(spec, current_state=f"In {directory} now: {listed}{more}.")

    def claim_annotations(self) -> bool:
        """Whether the caller annotates the texts of the response. Only one of the tools does."""
        claimed, self._annotates = not self._annotates, True
        return claimed

    def annotator(self) -> TextAnnotator:
        return WholeTextAnnotator(lambda text: cite(text, self._files.values(), list(self._made.values())))

    @contextmanager
    def lease(self) -> Generator[None]:
        """Keep the container in use: it neither expires nor is evicted while the model generates."""
        self._leases += 1
        if self._leases == 1 and self.record is not None:
            self._lease.enter_context(self._containers.using(self._context.owner, self.record.id))
        try:
            yield
        finally:
            self._leases -= 1
            if self._leases == 0:
                self._lease.close()

    # ── calls ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> ContainerRecord:
        """The container of the next call. An `auto` container that is gone, such as a deleted one, is replaced.

        `ApiError` or `StoreFault` if there is none; `unavailable` is the reason for the model.
        """
        owner = self._context.owner
        async with self._opening:
            current = self.record
            if current and self.auto is not None and await self._containers.newest_live(owner, [current.id]) is None:
                self._forget_files()
                self.record, self._container_replaced = None, True
            if self.record is None:
                skills = await self._library.load(owner, self._declared_skills)
                tier = None if self.auto is None else self.auto.memory_limit
                spec = ContainerSpec(name=AUTO_CONTAINER, memory_limit=tier, skills=skills)
                self.record = await self._containers.create(owner, spec)
                self._lease.enter_context(self._containers.using(owner, self.record.id))
            return self.record

    async def prepare(self, container_id: str) -> None:
        """Copy the files of the history into the container, before a program runs in it."""
        record = self.record
        if record is None or record.id != container_id:
            raise container_not_found(container_id)
        await self._fill(record)

    def run(
        self, container_id: str, program: PythonCode | ShellCommand, *, timeout: float | None = None
    ) -> AsyncGenerator[Output | ExecutionResult, None]:
        """Run a program; `SandboxError`, `ApiError` or `StoreFault` from the generator."""
        return self._containers.run(self._context.owner, container_id, program, timeout=timeout)

    def note_result(self, result: ExecutionResult) -> bool:
        """Take over the files of a result; whether the content from before the program was gone."""
        if result.sandbox_replaced and not self._filled_empty:
            self._forget_files()  # the files that were copied before this execution are gone, too
        for file in result.files:
            self._files[file.path] = self._made[file.path] = file
        if not result.sandbox_alive:
            self._forget_files()
        container_replaced, self._container_replaced = self._container_replaced, False
        return result.sandbox_replaced or container_replaced

    def note_error(self, error: Exception) -> str:
        """Take over what an exception of a program means; the reason for the model."""
        match error:
            case SandboxLost():
                self._forget_files()
                return f"The sandbox was lost before the program had ended. {error} {STATE_LOST}"
            case SandboxError():
                return f"The program did not run to its end: {error} Try again later, or answer without running it."
            case ApiError():
                return f"Nothing was run: {error.message}"
            case _:
                return "It may have run, but its result could not be stored. Try again later."

    # ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────

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
        declared = self.auto.file_ids if self.auto is not None else None
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


def unavailable(error: ApiError | StoreFault) -> str:
    """Why there is no container, for the model."""
    why = error.message if isinstance(error, ApiError) else "the server cannot store one right now."
    return f"There is no container to run it in: {why}"


async def _one_chunk(data: bytes) -> AsyncIterator[bytes]:
    yield data
