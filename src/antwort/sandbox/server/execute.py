"""`POST /execute`, the base protocol: one run in a container of its own, which is removed afterwards."""

from __future__ import annotations

import asyncio
import base64
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from antwort.sandbox.container.container import Container
from antwort.sandbox.container.reply import ExecReply
from antwort.sandbox.errors import BadPath, CannotStart, NotFound, TooLarge
from antwort.sandbox.files.tree import MAX_LISTED, FileTree, split_path
from antwort.sandbox.limits import ContainerLimits
from antwort.sandbox.packages.installer import InstallFailed
from antwort.sandbox.packages.manager import PackageManager
from antwort.sandbox.packages.requirements import check_requirements
from antwort.sandbox.pool.pool import Pool

from .bodies import JsonFields
from .settings import SandboxSettings

JsonResult: TypeAlias = dict[str, Any]

DEFAULT_SECONDS: Final = 30
MAX_PRODUCED_BYTES: Final = 64 << 20
_MAX_PATHS_NAMED: Final = 10
_LISTING_TRUNCATED: Final = (
    f"left out of files_produced: everything after the first {MAX_LISTED} files and directories; "
    "put them into an archive"
)


@dataclass(frozen=True, slots=True)
class OneShotRequest:
    """One validated request."""

    code: str
    seconds: int
    requirements: list[str]
    files: dict[str, bytes]
    tenant: str


def parse(fields: JsonFields, settings: SandboxSettings) -> OneShotRequest:
    """The request of a body; `Refused` if it is invalid."""
    files = fields.files()
    for name in files:
        split_path(name)
    return OneShotRequest(
        code=fields.code(),
        seconds=fields.integer("timeout_seconds", DEFAULT_SECONDS, settings.max_timeout_seconds),
        requirements=check_requirements(fields.strings("requirements")),
        files=files,
        tenant=fields.tenant(),
    )


async def run(request: OneShotRequest, pool: Pool, packages: PackageManager, settings: SandboxSettings) -> JsonResult:
    """Install the packages, create a container, run the code and collect the files; the time-out covers all of it."""
    deadline = time.monotonic() + request.seconds
    lease = None
    try:
        if request.requirements:
            lease = await packages.install(request.requirements, seconds=request.seconds, tenant=request.tenant)
        return await _run_with(lease.path if lease else None, request, pool, settings, deadline)
    except InstallFailed as error:
        return _to_json("error", -1, stderr=str(error))
    finally:
        if lease is not None:
            lease.release()


async def _run_with(
    packages: Path | None, request: OneShotRequest, pool: Pool, settings: SandboxSettings, deadline: float
) -> JsonResult:
    limits = ContainerLimits(output_bytes=settings.max_output_bytes)
    try:
        container = await pool.create(limits, tenant=request.tenant, packages=packages, output_dir=settings.output_dir)
    except CannotStart as error:
        return _to_json("error", -1, stderr=f"the container did not start: {error}")
    try:
        await asyncio.to_thread(_prepare, container.files, request.files, settings.output_dir)
        left = max(0.001, deadline - time.monotonic())
        reply = await container.execute(request.code, timeout=left, echo=False)
        produced, notes = await asyncio.to_thread(_collect, container, settings.output_dir)
    finally:
        await container.end("the run is over")
    return _build_result(reply, request.seconds, produced, notes)


def _prepare(tree: FileTree, files: dict[str, bytes], output: str) -> None:
    tree.make_directory(output)
    for name, data in files.items():
        tree.write(name, data)


def _collect(container: Container, output: str) -> tuple[dict[str, str], list[str]]:
    """Regular files below the output directory, and notes about omitted ones. Links are neither followed nor sent."""
    produced: dict[str, str] = {}
    too_large: list[str] = []
    left = MAX_PRODUCED_BYTES
    try:
        tree = container.files
        listing = tree.list(output)
    except (BadPath, NotFound, TooLarge):
        return {}, []
    except Exception as error:  # noqa: BLE001 - the code may have broken its container in any way
        return {}, [f"files could not be collected: {error}"]
    for entry in listing.entries:
        if entry.kind != "file":
            continue
        try:
            data = tree.read(entry.path, left)
        except TooLarge:
            too_large.append(entry.path)
            continue
        except (BadPath, NotFound):
            continue
        left -= len(data)
        produced[entry.path.removeprefix(f"{output}/")] = base64.b64encode(data).decode()
    return produced, [*_describe_omitted(too_large), *([_LISTING_TRUNCATED] if listing.has_more else [])]


def _describe_omitted(paths: list[str]) -> list[str]:
    if not paths:
        return []
    more = f" and {len(paths) - _MAX_PATHS_NAMED} more" if len(paths) > _MAX_PATHS_NAMED else ""
    shown = ", ".join(paths[:_MAX_PATHS_NAMED])
    return [f"left out of files_produced: {shown}{more}: the limit of all files together is {MAX_PRODUCED_BYTES} bytes"]


def _build_result(reply: ExecReply, seconds: int, produced: dict[str, str], notes: list[str]) -> JsonResult:
    if reply.status == "timeout":
        notes = [f"timed out after {seconds} s", *notes]
    elif reply.status == "ended" and reply.reason == "oom":
        notes = ["oom: the code exceeded its memory limit", *notes]
    elif reply.status == "ended":
        notes = [reply.reason or "the container ended", *notes]
    stderr = reply.stderr + "".join(f"{note}\n" for note in notes)
    status = "success" if reply.exit_code == 0 else "error"
    result = _to_json(status, reply.exit_code, stdout=reply.stdout, stderr=stderr, milliseconds=reply.execution_time_ms)
    return result | ({"files_produced": produced} if produced else {})


def _to_json(status: str, code: int, *, stdout: str = "", stderr: str = "", milliseconds: int = 0) -> JsonResult:
    return {"status": status, "stdout": stdout, "stderr": stderr, "exit_code": code, "execution_time_ms": milliseconds}
