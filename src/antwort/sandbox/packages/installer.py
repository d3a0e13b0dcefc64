"""Runs `uv` for one set of packages: in a jail of its own, within a quota, and ended as soon as it is over that.

The installer has the network and no container has; neither sees the other's files. Only wheels are installed unless the
operator says otherwise, since building a package means running its code.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Final

from antwort.sandbox.errors import CannotStart, Refused, TooLarge
from antwort.sandbox.files import quota
from antwort.sandbox.files.quota import Quota, Usage
from antwort.sandbox.host import bubblewrap
from antwort.sandbox.host.cgroups import Cgroup
from antwort.sandbox.host.probe import UIDS, Host
from antwort.sandbox.limits import GIB, ContainerLimits
from antwort.sandbox.pool.preload import Stack
from antwort.sandbox.threads import DedicatedThreads

_WORDS: Final = 2_000
_LOOK_SECONDS: Final = 0.05
_END_SECONDS: Final = 10.0
_CERTIFICATES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_BEHIND_THE_SERVER: Final = 5
_LAST: Final = 19
_SHARE: Final = ContainerLimits(memory_bytes=2 * GIB, processes=256, cpus=1.0)
"""Where control groups are to be had."""

# It waits for a line: until then it is put where its limits hold, and if the server is killed it ends by itself.
_GO: Final = 'read -r go && ulimit -f "$0" && exec "$@" </dev/null'
_BLOCK: Final = 512  # what `ulimit -f` counts in
_FILE_TOO_LARGE: Final = (-signal.SIGXFSZ, 128 + signal.SIGXFSZ)


class InstallFailed(Refused):
    """It could not be done; the message says why, most often in the installer's own words."""

    def __init__(self, why: str) -> None:
        super().__init__(f"package installation failed: {why}")


class Installer:
    """Fills directories with packages."""

    def __init__(
        self, host: Host, stack: Stack, workers: DedicatedThreads, *, index: str | None, builds: bool, limit: Quota
    ) -> None:
        self._host = host
        self._stack = stack
        self._workers = workers
        self._index = index
        self._builds = builds
        self._limit = limit

    async def fill(self, out: Path, wanted: list[str]) -> Usage:
        """Install into this directory, which is made; answers what that took."""
        try:
            code, words = await self._run(self._launch(out, wanted), out)
            if code in _FILE_TOO_LARGE or (code and "File too large" in words):
                self._limit.check(Usage(size=self._limit.size + 1))  # the kernel saw it first; it is told in our words
            if code:
                raise InstallFailed(words.strip()[-_WORDS:] or "uv failed without a word")
            await self._workers.run(lambda: quota.remove(out / ".tmp"))
            return await self._workers.run(lambda: quota.measure(out, self._limit))
        except TooLarge as error:
            raise InstallFailed(str(error)) from error

    async def _run(self, launch: bubblewrap.Launch, out: Path) -> tuple[int, str]:
        """Its exit code and last words, or `TooLarge`. When this returns or raises, all of it has ended."""
        process = await _started(launch, str(self._limit.size // _BLOCK + 1))
        said = asyncio.create_task(_tail(process))
        wards: list[Cgroup] = []
        try:
            with contextlib.suppress(ProcessLookupError):
                # Relative: the server itself may have been started behind others, and nobody may overtake it.
                behind = os.getpriority(os.PRIO_PROCESS, process.pid) + _BEHIND_THE_SERVER
                os.setpriority(os.PRIO_PROCESS, process.pid, min(behind, _LAST))
            await self._workers.run(lambda: self._guard(process.pid, wards))
            _go(process)
            await self._watch(out, said)
            code = await process.wait()
            if code and any(ward.out_of_memory() for ward in wards):
                raise TooLarge(f"more than the limit of {_SHARE.memory_bytes} bytes of memory")
            return code, said.result()
        finally:
            await _end(process, said)
            for ward in wards:
                await self._workers.run(ward.release)

    def _guard(self, pid: int, wards: list[Cgroup]) -> None:
        """Into a control group, where there are any. It is in the list at once, so that it is removed in any case."""
        if self._host.groups is not None:
            try:
                wards.append(self._host.groups.ward([pid]))
                wards[-1].limit(_SHARE)
            except OSError as error:
                raise CannotStart(f"no control group could be made: {error}") from error

    async def _watch(self, out: Path, said: asyncio.Task[str]) -> None:
        """Look until its last word, which comes when every process of it has ended."""
        pause = _LOOK_SECONDS
        while not (await asyncio.wait([said], timeout=pause))[0]:
            begun = time.monotonic()
            await self._workers.run(lambda: quota.measure(out, self._limit))
            # Many files take long to look at, and looking is not all that there is to do.
            pause = max(_LOOK_SECONDS, time.monotonic() - begun)

    def _launch(self, out: Path, wanted: list[str]) -> bubblewrap.Launch:
        from uv import find_uv_bin  # noqa: PLC0415 - only servers that install packages need it

        uv = Path(find_uv_bin())
        uid = UIDS[-2] if self._host.root and "namespaces" in self._host.walls else None
        for directory in (out, out / ".tmp"):
            directory.mkdir(mode=0o700)
            if uid is not None:
                os.chown(directory, uid, uid)
        # Hard links from its own temporary cache: a package is on the disk once, not twice.
        options = ["--link-mode", "hardlink", "--no-cache", "--no-progress", "--quiet"]
        if not self._builds:
            options += ["--only-binary", ":all:"]
        if self._index is not None:
            options += ["--default-index", self._index]
        certificates = {name: os.environ[name] for name in _CERTIFICATES if name in os.environ}
        if "namespaces" not in self._host.walls:
            environment = {"HOME": str(out / ".tmp"), "TMPDIR": str(out / ".tmp"), **certificates}
            command = _command(str(uv), sys.executable, str(out), options, wanted)
            return bubblewrap.Launch(["/usr/bin/env", "-i", *(f"{k}={v}" for k, v in environment.items()), *command])
        tree, python = bubblewrap.system(self._stack)
        for name in ("/etc/resolv.conf", "/etc/ssl", "/usr/share/ca-certificates", "/etc/uv"):
            tree.read_only(Path(name), name)
        for name in certificates.values():
            tree.read_only(Path(name), name)
        tree.read_only(uv, "/opt/uv")
        tree.writable(out, "/out")
        environment = {"PATH": "/usr/bin:/bin", "HOME": "/out/.tmp", "TMPDIR": "/out/.tmp"}
        environment |= certificates | self._stack.environment
        return tree.launch(_command("/opt/uv", python, "/out", options, wanted), environment, uid, network=True)


def _command(uv: str, python: str, out: str, options: list[str], wanted: list[str]) -> list[str]:
    return [uv, "pip", "install", "--python", python, "--target", out, *options, "--", *wanted]


async def _started(launch: bubblewrap.Launch, blocks: str) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", _GO, blocks, *launch.argv),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=launch.descriptors,
            start_new_session=True,
            env={},
            cwd="/",
        )
    finally:
        launch.close()


def _go(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.write(b"\n")
        process.stdin.close()


async def _tail(process: asyncio.subprocess.Process) -> str:
    """The end of what it says, read to the end, so that it never waits for us."""
    kept = b""
    while process.stderr is not None and (piece := await process.stderr.read(1 << 16)):
        kept = (kept + piece)[-4 * _WORDS :]
    return kept.decode(errors="replace")


async def _end(process: asyncio.subprocess.Process, said: asyncio.Task[str]) -> None:
    """End it if it has not ended. Its last word comes when nobody is left who could still write to the disk."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    await asyncio.wait([said], timeout=_END_SECONDS)
    said.cancel()
    await process.wait()
