"""`POST /execute`: one run in a container of its own, gone afterwards. The base protocol."""

from __future__ import annotations

import asyncio
import base64
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from antwort.sandbox.container.container import Container
from antwort.sandbox.container.reply import ExecReply
from antwort.sandbox.errors import BadPath, CannotStart, NotFound, TooLarge
from antwort.sandbox.files.tree import MAX_LISTED, FileTree, split_path
from antwort.sandbox.limits import ContainerLimits
from antwort.sandbox.packages.installer import InstallFailed
from antwort.sandbox.packages.manager import PackageManager
from antwort.sandbox.packages.requirements import check_requirements
from antwort.sandbox.pool.pool import Pool

from .bodies import Fields
from .settings import SandboxSettings

DEFAULT_SECONDS: Final = 30
MOST_PRODUCED_BYTES: Final = 64 << 20
_NAMED: Final = 10
_TOO_MANY: Final = (
    f"left out of files_produced: all that comes after the first {MAX_LISTED} files and directories; "
    "put them into an archive"
)


@dataclass(frozen=True, slots=True)
class Run:
    """What one request asks for, checked."""

    code: str
    seconds: int
    requirements: list[str]
    files: dict[str, bytes]
    tenant: str


def parse(fields: Fields, settings: SandboxSettings) -> Run:
    """What the body asks for, or `Refused`."""
    files = fields.files()
    for name in files:
        split_path(name)
    return Run(
        code=fields.code(),
        seconds=fields.number("timeout_seconds", DEFAULT_SECONDS, settings.max_timeout_seconds),
        requirements=check_requirements(fields.texts("requirements")),
        files=files,
        tenant=fields.tenant(),
    )


async def run(order: Run, pool: Pool, packages: PackageManager, settings: SandboxSettings) -> dict[str, Any]:
    """Install, create, run, collect, destroy; the caller's time counts for all of it."""
    deadline = time.monotonic() + order.seconds
    lease = None
    try:
        if order.requirements:
            lease = await packages.install(order.requirements, seconds=order.seconds, tenant=order.tenant)
        return await _run_with(lease.path if lease else None, order, pool, settings, deadline)
    except InstallFailed as error:
        return _answer("error", -1, stderr=str(error))
    finally:
        if lease is not None:
            lease.release()


async def _run_with(
    packages: Path | None, order: Run, pool: Pool, settings: SandboxSettings, deadline: float
) -> dict[str, Any]:
    limits = ContainerLimits(output_bytes=settings.max_output_bytes)
    try:
        container = await pool.create(limits, tenant=order.tenant, packages=packages, output_dir=settings.output_dir)
    except CannotStart as error:
        return _answer("error", -1, stderr=f"the container did not start: {error}")
    try:
        await asyncio.to_thread(_prepare, container.files, order.files, settings.output_dir)
        left = max(0.001, deadline - time.monotonic())
        reply = await container.execute(order.code, timeout=left, echo=False)
        produced, notes = await asyncio.to_thread(_collect, container, settings.output_dir)
    finally:
        await container.end("the run is over")
    return _report(reply, order, produced, notes)


def _prepare(tree: FileTree, files: dict[str, bytes], output: str) -> None:
    tree.make_directory(output)
    for name, data in files.items():
        tree.write(name, data)


def _collect(container: Container, output: str) -> tuple[dict[str, str], list[str]]:
    """Regular files in the output directory, sub-directories too; links are not followed, and not sent."""
    produced: dict[str, str] = {}
    too_large: list[str] = []
    left = MOST_PRODUCED_BYTES
    try:
        tree = container.files
        listing = tree.list(output)
    except (BadPath, NotFound, TooLarge):
        return {}, []
    except Exception as error:  # noqa: BLE001 - the code may have ended its container in any way
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
    return produced, [*_left_out(too_large), *([_TOO_MANY] if listing.has_more else [])]


def _left_out(paths: list[str]) -> list[str]:
    if not paths:
        return []
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    shown = ", ".join(paths[:_NAMED])
    return [f"left out of files_produced: {shown}{more}: all files together may have {MOST_PRODUCED_BYTES} bytes"]


def _report(reply: ExecReply, order: Run, produced: dict[str, str], notes: list[str]) -> dict[str, Any]:
    if reply.status == "timeout":
        notes = [f"timed out after {order.seconds} s", *notes]
    elif reply.status == "ended" and reply.reason == "oom":
        notes = ["oom: the code needed more memory than it may have", *notes]
    elif reply.status == "ended":
        notes = [reply.reason or "the container ended", *notes]
    stderr = reply.stderr + "".join(f"{note}\n" for note in notes)
    answer = _answer(
        "success" if reply.exit_code == 0 else "error",
        reply.exit_code,
        stdout=reply.stdout,
        stderr=stderr,
        milliseconds=reply.execution_time_ms,
    )
    return answer | ({"files_produced": produced} if produced else {})


def _answer(status: str, code: int, *, stdout: str = "", stderr: str = "", milliseconds: int = 0) -> dict[str, Any]:
    return {"status": status, "stdout": stdout, "stderr": stderr, "exit_code": code, "execution_time_ms": milliseconds}
