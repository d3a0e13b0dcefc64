"""Package installer: runs `uv pip install` for one set of packages in its own jail, within a disk quota.

The installer has network access and containers have none; neither sees the other's files. Only wheels are installed
unless the operator allows builds, since building a package runs its code.
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
from antwort.sandbox.files.quota import DiskUsage, Quota
from antwort.sandbox.host import bubblewrap
from antwort.sandbox.host.cgroups import Cgroup
from antwort.sandbox.host.probe import UIDS, Host
from antwort.sandbox.limits import GIB, ContainerLimits
from antwort.sandbox.pool.preload import Stack
from antwort.sandbox.threads import DedicatedThreads

_MAX_MESSAGE_CHARS: Final = 2_000
_QUOTA_CHECK_SECONDS: Final = 0.05
_KILL_TIMEOUT_SECONDS: Final = 10.0
_CERTIFICATE_VARIABLES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_NICE_INCREMENT: Final = 5
_MAX_NICE: Final = 19
_LIMITS: Final = ContainerLimits(memory_bytes=2 * GIB, processes=256, cpus=1.0)
"""Limits of the installer's cgroup, where the host has cgroups."""

# The shell waits for a line, so that limits are set before `uv` starts; if the server is killed, it exits.
_WAIT_THEN_EXEC: Final = 'read -r go && ulimit -f "$0" && exec "$@" </dev/null'
_ULIMIT_BLOCK_BYTES: Final = 512  # the unit of `ulimit -f`
_FILE_TOO_LARGE: Final = (-signal.SIGXFSZ, 128 + signal.SIGXFSZ)


class InstallFailed(Refused):
    """The installation failed; the message says why, mostly with the installer's own output."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"package installation failed: {reason}")


class Installer:
    """Installs packages into directories."""

    def __init__(
        self, host: Host, stack: Stack, threads: DedicatedThreads, *, index: str | None, builds: bool, quota: Quota
    ) -> None:
        self._host = host
        self._stack = stack
        self._threads = threads
        self._index = index
        self._builds = builds
        self._quota = quota

    async def install(self, out: Path, requirements: list[str]) -> DiskUsage:
        """Install into this directory, which is created; returns its disk usage."""
        try:
            code, message = await self._run(self._launch(out, requirements), out)
            if code in _FILE_TOO_LARGE or (code and "File too large" in message):
                self._quota.check(DiskUsage(size=self._quota.size + 1))  # RLIMIT_FSIZE hit: report it as quota
            if code:
                raise InstallFailed(message.strip()[-_MAX_MESSAGE_CHARS:] or "uv failed without a message")
            await self._threads.run(lambda: quota.remove(out / ".tmp"))
            return await self._threads.run(lambda: quota.measure(out, self._quota))
        except TooLarge as error:
            raise InstallFailed(str(error)) from error

    async def _run(self, launch: bubblewrap.Launch, out: Path) -> tuple[int, str]:
        """The exit code and the tail of stderr, or `TooLarge`. On return all its processes have ended."""
        process = await _start(launch, str(self._quota.size // _ULIMIT_BLOCK_BYTES + 1))
        stderr = asyncio.create_task(_read_stderr(process))
        cgroups: list[Cgroup] = []
        try:
            with contextlib.suppress(ProcessLookupError):
                # Relative to the server's own niceness, which it must not undercut.
                nice = os.getpriority(os.PRIO_PROCESS, process.pid) + _NICE_INCREMENT
                os.setpriority(os.PRIO_PROCESS, process.pid, min(nice, _MAX_NICE))
            await self._threads.run(lambda: self._attach_cgroup(process.pid, cgroups))
            _let_start(process)
            await self._enforce_quota(out, stderr)
            code = await process.wait()
            if code and any(cgroup.out_of_memory() for cgroup in cgroups):
                raise TooLarge(f"more than the limit of {_LIMITS.memory_bytes} bytes of memory")
            return code, stderr.result()
        finally:
            await _kill(process, stderr)
            for cgroup in cgroups:
                await self._threads.run(cgroup.release)

    def _attach_cgroup(self, pid: int, cgroups: list[Cgroup]) -> None:
        """Move it into a new cgroup, if the host has any; listed before it is limited, so that it is always removed."""
        if self._host.cgroups is not None:
            try:
                cgroups.append(self._host.cgroups.create([pid]))
                cgroups[-1].limit(_LIMITS)
            except OSError as error:
                raise CannotStart(f"no cgroup could be created: {error}") from error

    async def _enforce_quota(self, out: Path, stderr: asyncio.Task[str]) -> None:
        """Check the quota until stderr is closed, which is when all its processes have ended."""
        pause = _QUOTA_CHECK_SECONDS
        while not (await asyncio.wait([stderr], timeout=pause))[0]:
            started = time.monotonic()
            await self._threads.run(lambda: quota.measure(out, self._quota))
            # Measuring many files takes long: spend at most half of the time on it.
            pause = max(_QUOTA_CHECK_SECONDS, time.monotonic() - started)

    def _launch(self, out: Path, requirements: list[str]) -> bubblewrap.Launch:
        from uv import find_uv_bin  # noqa: PLC0415 - only servers that install packages need it

        uv = Path(find_uv_bin())
        uid = UIDS[-2] if self._host.root and "namespaces" in self._host.layers else None
        for directory in (out, out / ".tmp"):
            directory.mkdir(mode=0o700)
            if uid is not None:
                os.chown(directory, uid, uid)
        # Hard links from its temporary cache: a package is on the disk once, not twice.
        options = ["--link-mode", "hardlink", "--no-cache", "--no-progress", "--quiet"]
        if not self._builds:
            options += ["--only-binary", ":all:"]
        if self._index is not None:
            options += ["--default-index", self._index]
        certificates = {name: os.environ[name] for name in _CERTIFICATE_VARIABLES if name in os.environ}
        if "namespaces" not in self._host.layers:
            environment = {"HOME": str(out / ".tmp"), "TMPDIR": str(out / ".tmp"), **certificates}
            command = _command(str(uv), sys.executable, str(out), options, requirements)
            return bubblewrap.Launch(["/usr/bin/env", "-i", *(f"{k}={v}" for k, v in environment.items()), *command])
        tree, python = bubblewrap.base_mounts(self._stack)
        for name in ("/etc/resolv.conf", "/etc/ssl", "/usr/share/ca-certificates", "/etc/uv"):
            tree.read_only(Path(name), name)
        for name in certificates.values():
            tree.read_only(Path(name), name)
        tree.read_only(uv, "/opt/uv")
        tree.writable(out, "/out")
        environment = {"PATH": "/usr/bin:/bin", "HOME": "/out/.tmp", "TMPDIR": "/out/.tmp"}
        environment |= certificates | self._stack.environment
        return tree.launch(_command("/opt/uv", python, "/out", options, requirements), environment, uid, network=True)


def _command(uv: str, python: str, out: str, options: list[str], requirements: list[str]) -> list[str]:
    return [uv, "pip", "install", "--python", python, "--target", out, *options, "--", *requirements]


async def _start(launch: bubblewrap.Launch, blocks: str) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", _WAIT_THEN_EXEC, blocks, *launch.argv),
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


def _let_start(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.write(b"\n")
        process.stdin.close()


async def _read_stderr(process: asyncio.subprocess.Process) -> str:
    """The tail of stderr, read to the end, so that the process never blocks on a full pipe."""
    kept = b""
    while process.stderr is not None and (piece := await process.stderr.read(1 << 16)):
        kept = (kept + piece)[-4 * _MAX_MESSAGE_CHARS :]
    return kept.decode(errors="replace")


async def _kill(process: asyncio.subprocess.Process, stderr: asyncio.Task[str]) -> None:
    """Kill the process group. Stderr is closed when no process is left that could still write to the disk."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    await asyncio.wait([stderr], timeout=_KILL_TIMEOUT_SECONDS)
    stderr.cancel()
    await process.wait()
