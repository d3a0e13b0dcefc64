"""Packages for a container: checked by name, installed by `uv` in a jail of its own, cached by what was asked.

The installer has the network and the container has not; neither sees the other's files. Only wheels are installed
unless the operator says otherwise, since building a package means running its code.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement

from . import bubblewrap
from .errors import BadRequirement, Refused
from .host import UIDS, Host
from .stack import Stack

MOST: Final = 50
_LONGEST: Final = 200
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._,<>=!~*+ \[\]-]*")
_WORDS: Final = 2_000
# What `uv` takes for the path of a file, though it is a name as well as any.
_ARCHIVES: Final = (
    ".whl",
    ".zip",
    ".tar",
    ".tgz",
    ".tbz",
    ".txz",
    ".tlz",
    ".gz",
    ".bz2",
    ".xz",
    ".lz",
    ".lzma",
    ".zst",
)
_CERTIFICATES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")


class InstallFailed(Refused):
    """The installer could not do it; the message is its own."""


def check(requirements: list[str]) -> list[str]:
    """The requirements in one canonical order, or `BadRequirement`: names with versions and extras, nothing else."""
    if len(requirements) > MOST:
        message = f"{len(requirements)} requirements are more than the {MOST} allowed"
        raise BadRequirement(message)
    return sorted({_check_one(line) for line in requirements})


def _check_one(line: str) -> str:
    refusal = f"{line[:_LONGEST]!r} is not a package name with versions, such as 'rich>=13,<15'"
    # The pattern comes first: it leaves no room for options, URLs, paths, markers or a second line.
    if len(line) > _LONGEST or not _PLAIN.fullmatch(line):
        raise BadRequirement(refusal)
    try:
        requirement = Requirement(line)
    except InvalidRequirement as error:
        raise BadRequirement(refusal) from error
    if requirement.url is not None or requirement.marker is not None or requirement.name.lower().endswith(_ARCHIVES):
        raise BadRequirement(refusal)
    return str(requirement)


class Packages:
    """Installed sets of packages, shared by the hash of what was asked for."""

    def __init__(self, directory: Path, host: Host, stack: Stack, *, index: str | None, builds: bool = False) -> None:
        self._directory = directory
        self._host = host
        self._stack = stack
        self._index = index
        self._builds = builds
        self._running: dict[str, asyncio.Task[Path]] = {}
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        _sweep(directory)

    async def install(self, requirements: list[str], *, seconds: float) -> Path:
        """The directory with these packages, installed now or earlier."""
        wanted = check(requirements)
        digest = self._digest(wanted)
        place = self._directory / digest
        if await asyncio.to_thread(place.is_dir):
            return place
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            task = self._running.get(digest)
            if task is None:
                task = asyncio.create_task(self._install(wanted, place, left))
                self._running[digest] = task
                task.add_done_callback(lambda _: self._running.pop(digest, None))
            with contextlib.suppress(TimeoutError):  # ours, or that of somebody with less time: then it is tried again
                return await asyncio.wait_for(asyncio.shield(task), left)
        message = f"it took longer than the {seconds:.0f} s that were left"
        raise InstallFailed(message)

    def _digest(self, wanted: list[str]) -> str:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        asked = json.dumps([version, self._index, self._builds, wanted])
        return hashlib.sha256(asked.encode()).hexdigest()

    async def _install(self, wanted: list[str], place: Path, seconds: float) -> Path:
        staging = Path(await asyncio.to_thread(tempfile.mkdtemp, dir=self._directory, prefix="."))
        with _held(staging):
            try:
                await self._run(wanted, staging, seconds)
                await asyncio.to_thread(_publish, staging, place)
            finally:
                await asyncio.to_thread(shutil.rmtree, staging, ignore_errors=True)
        return place

    async def _run(self, wanted: list[str], staging: Path, seconds: float) -> None:
        launch = self._launch(wanted, staging)
        try:
            process = await asyncio.create_subprocess_exec(
                *launch.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=launch.descriptors,
                start_new_session=True,
                env={},
                cwd="/",
            )
        finally:
            launch.close()
        try:
            _, words = await asyncio.wait_for(process.communicate(), seconds)
        except (TimeoutError, asyncio.CancelledError):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            await process.wait()
            raise
        if process.returncode != 0:
            raise InstallFailed(words.decode(errors="replace").strip()[-_WORDS:] or "uv failed without a word")

    def _launch(self, wanted: list[str], staging: Path) -> bubblewrap.Launch:
        from uv import find_uv_bin  # noqa: PLC0415 - only servers that install packages need it

        uv = Path(find_uv_bin())
        options = ["--target", "/out", "--link-mode", "copy", "--no-cache", "--no-progress", "--quiet"]
        if not self._builds:
            options += ["--only-binary", ":all:"]
        if self._index is not None:
            options += ["--default-index", self._index]
        certificates = {name: os.environ[name] for name in _CERTIFICATES if name in os.environ}
        if "namespaces" not in self._host.walls:
            options[1] = str(staging / "out")
            command = [str(uv), "pip", "install", "--python", sys.executable, *options, "--", *wanted]
            return bubblewrap.Launch(["/usr/bin/env", "-i", *(f"{k}={v}" for k, v in certificates.items()), *command])
        uid = UIDS[-2] if self._host.root else None
        for directory in (staging / "out", staging / "out" / ".tmp"):
            directory.mkdir(mode=0o700)
            if uid is not None:
                os.chown(directory, uid, uid)
        tree, python = bubblewrap.system(self._stack)
        for name in ("/etc/resolv.conf", "/etc/ssl", "/usr/share/ca-certificates", "/etc/uv"):
            tree.read_only(Path(name), name)
        for name in certificates.values():
            tree.read_only(Path(name), name)
        tree.read_only(uv, "/opt/uv")
        tree.writable(staging / "out", "/out")
        environment = {"PATH": "/usr/bin:/bin", "HOME": "/out/.tmp", "TMPDIR": "/out/.tmp"}
        environment |= certificates | self._stack.environment
        command = ["/opt/uv", "pip", "install", "--python", python, *options, "--", *wanted]
        return tree.launch(command, environment, uid, network=True)


@contextlib.contextmanager
def _held(staging: Path) -> Generator[bool]:
    """Whether nobody else works in this directory; until it is let go, nobody does. A killed server lets go, too."""
    descriptor = os.open(staging, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield _locked(descriptor)
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sweep(directory: Path) -> None:
    """Remove what a server left half installed when it was killed."""
    for staging in directory.glob(".*"):
        with contextlib.suppress(OSError), _held(staging) as ours:
            if ours:
                shutil.rmtree(staging, ignore_errors=True)


def _publish(staging: Path, place: Path) -> None:
    """Take write permission away and give the set its name, in one step."""
    out = staging / "out"
    shutil.rmtree(out / ".tmp", ignore_errors=True)
    for directory, _, files in os.walk(out):
        _seal(Path(directory), 0o555)
        for name in files:
            file = Path(directory, name)
            if file.is_symlink():
                file.unlink()  # wheels have none; whoever put it there meant no good
            else:
                _seal(file, 0o555 if file.stat().st_mode & stat.S_IXUSR else 0o444)
    out.chmod(0o755)  # a directory must be writable to be renamed
    try:
        out.rename(place)
    except OSError:
        if not place.is_dir():  # else another server with the same state was faster
            raise
    place.chmod(0o555)


def _seal(path: Path, mode: int) -> None:
    if os.geteuid() == 0:
        os.chown(path, 0, 0)
    path.chmod(mode)
