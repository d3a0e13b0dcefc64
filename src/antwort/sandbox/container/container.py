"""Container: one isolated interpreter. Run code in it, interrupt it, access its files, end it.

The code inside is hostile. It can send anything on the control channel, so a frame is only ever *its own* result. How
a container ended (out of memory, timeout, killed) is determined from the kernel and the server's clock, never from the
code.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from antwort.sandbox.container.call import Call, OnOutput
from antwort.sandbox.container.channel import Channel
from antwort.sandbox.container.pipes import Pipes
from antwort.sandbox.container.reply import ExecReply
from antwort.sandbox.errors import CannotStart, Ended
from antwort.sandbox.files.tree import FileTree
from antwort.sandbox.host.cgroups import Cgroup, CgroupManager
from antwort.sandbox.host.process import ProcessHandle, descendants, describe_exit, kill_descendants, shell_exit_code
from antwort.sandbox.jail import mounts, wire
from antwort.sandbox.limits import ContainerLimits
from antwort.sandbox.pool.zygote_process import ZygoteProcess

_SETUP_SECONDS: Final = 30.0
_GRACE_SECONDS: Final = 0.5
_PIPE_MODE: Final = 0o222  # programs write to /dev/stderr by its path, as another user than the server
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSettings:
    """What a container is configured with, besides its limits, before any user code runs."""

    has_namespaces: bool = True
    """It has its own file systems, network and processes."""
    data_dir: str = mounts.DATA
    packages: str | None = None
    """Directory of its set of packages below the package cache."""
    session_packages: str | None = None
    """Directory below the package cache for packages that are added while it runs."""
    session_packages_dir: str = mounts.SESSION_PACKAGES
    """The same directory as a path inside the container."""
    sys_path: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict[str, str])
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()


class Container:
    """A forked interpreter: `spawn` it, `configure` it, then `execute` runs one call at a time."""

    def __init__(self, channel: socket.socket, output: int, errors: int, uid: int | None = None) -> None:
        self.number = next(_numbers)
        self.limits = ContainerLimits()
        self.calls = 0
        self.has_namespaces = True
        """It has its own file systems and network; else they are the host's and cannot be measured per container."""
        self._uid = uid
        self._channel = Channel(channel, self._on_channel_broken)
        self._pipes = Pipes(output, errors)
        self._init = ProcessHandle()
        self._interpreter = ProcessHandle()
        self._lock = asyncio.Lock()
        self._exit_status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._reason: str | None = None
        self._cgroup: Cgroup | None = None
        self._tree: FileTree | None = None
        self._end_callbacks: list[Callable[[], None]] = []
        self._end_task: asyncio.Task[None] | None = None

    # -- start --------------------------------------------------------------------------------------------------

    @classmethod
    async def spawn(cls, zygote: ZygoteProcess) -> Container:
        """Fork a container into its namespaces; it waits for `configure`."""
        server_end, child_end = socket.socketpair()
        output, output_end = os.pipe()
        errors, errors_end = os.pipe()
        container = cls(server_end, output, errors, zygote.uid)
        try:
            ends = [child_end.fileno(), output_end, errors_end]
            container._init = await zygote.fork(f"c{container.number}", ends, container._on_exit)
        except BaseException:
            container._close_descriptors()
            raise
        finally:
            child_end.close()
            os.close(output_end)
            os.close(errors_end)
        container._channel.open()
        container._pipes.start()
        descriptors = await container._wait_for_setup(container._channel.wait_hello())
        # Without pidfds (not Linux) there are no namespaces and no init: init and interpreter are one process.
        container._interpreter = ProcessHandle(descriptors.pop()) if descriptors else container._init.copy_by_pid()
        return container

    async def attach_cgroup(self, manager: CgroupManager) -> None:
        """Move it into its own cgroup, before any user code runs in it."""
        creating = asyncio.ensure_future(asyncio.to_thread(manager.create, self.pids()))
        try:
            self._cgroup = await asyncio.shield(creating)
        except asyncio.CancelledError:
            self._cgroup = await creating  # the thread cannot be cancelled, and `end` must remove the cgroup
            raise

    async def configure(self, limits: ContainerLimits, settings: ContainerSettings, *, has_cgroup: bool) -> None:
        """Send the limits and wait until the container is locked down."""
        self.limits = limits
        self.has_namespaces = settings.has_namespaces
        header = {
            **asdict(settings),
            "disk_bytes": limits.disk_bytes,
            "disk_files": limits.disk_files,
            "processes": limits.processes,
            # With a cgroup the kernel counts exactly; without, twice the limit stops what outruns the watchdog.
            "memory_bytes": None if has_cgroup else 2 * limits.memory_bytes,
        }
        if self._cgroup is not None:
            await asyncio.to_thread(self._cgroup.limit, limits)
        with contextlib.suppress(OSError):  # if it has died, waiting for `ready` raises
            await self._channel.send(wire.encode(header))
        self._tree = FileTree(await self._wait_for_setup(self._channel.wait_ready()), self._uid)

    async def _wait_for_setup(self, message: Coroutine[Any, Any, list[int]]) -> list[int]:
        try:
            return await asyncio.wait_for(message, _SETUP_SECONDS)
        except (TimeoutError, CannotStart) as error:
            await self.end("it did not start")
            raise CannotStart(f"a container did not start: {error or 'timed out'}") from error
        except asyncio.CancelledError:
            await self.end("the request was cancelled")
            raise

    # -- use ----------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        return not self._exit_status.done() and self._reason is None

    @property
    def busy(self) -> bool:
        return self._channel.call is not None

    @property
    def reason(self) -> str | None:
        """Why it ended, or None while it runs."""
        return self._reason

    @property
    def oom_killed(self) -> bool:
        """The kernel's OOM killer has killed one of its processes, though perhaps not the interpreter."""
        cgroup = self._cgroup  # read once: the watchdog's thread calls this while `end` may clear it
        return cgroup is not None and cgroup.out_of_memory()

    @property
    def files(self) -> FileTree:
        """Its files; readable until `end`, also after the interpreter has exited by itself."""
        tree = self._tree  # read once: other threads call this while `end` may clear it
        if tree is None:
            raise Ended(self._reason or "it never started")
        return tree

    def pids(self) -> list[int]:
        """Host process ids of init and interpreter."""
        return [pid for pid in (self._init.pid, self._interpreter.pid) if pid > 0]

    async def execute(
        self,
        code: str,
        *,
        timeout: float,  # noqa: ASYNC109 - for the code inside, not for this call
        echo: bool = True,
        packages: str | None = None,
        on_output: OnOutput | None = None,
    ) -> ExecReply:
        """Run the code. After the timeout it is interrupted; if it does not stop, the container is ended.

        `packages` names a set in its session packages that becomes importable.
        """
        async with self._lock:
            if not self.alive:
                raise Ended(self._reason or "it never started")
            self.calls += 1
            request = {"code": code, "echo": echo, "packages": packages}
            call = Call(request, timeout=timeout, output_bytes=self.limits.output_bytes, on_output=on_output)
            self._pipes.start_capture(call.add_output)
            try:
                return await self._run_call(call, self._pipes)
            except asyncio.CancelledError:
                # The caller is gone, but the next call must not find this one still running,
                await _run_to_completion(self._interrupt_or_kill(call))
                self._pipes.drain()  # nor read its output
                raise
            finally:
                self._pipes.stop_capture()
                self._channel.clear_call()

    async def run_command(
        self,
        command: str,
        *,
        timeout: float,  # noqa: ASYNC109 - for the command inside, not for this call
        on_output: OnOutput | None = None,
    ) -> ExecReply:
        """Run a shell command in a process of its own, in the directory of the files.

        After the timeout it is killed, with every process that it has started. Of a command that ends by itself,
        processes in the background continue, and their output is not read any more.
        """
        async with self._lock:
            if not self.alive:
                raise Ended(self._reason or "it never started")
            self.calls += 1
            before = await asyncio.to_thread(self._processes)
            (output, output_end), (errors, errors_end) = os.pipe(), os.pipe()
            for end in (ends := [output_end, errors_end]):
                os.fchmod(end, _PIPE_MODE)
            call = Call(
                {"command": command},
                timeout=timeout,
                output_bytes=self.limits.output_bytes,
                on_output=on_output,
                descriptors=tuple(ends),
            )
            pipes = Pipes(output, errors)
            pipes.start_capture(call.add_output)
            pipes.start()
            try:
                reply = await self._run_call(call, pipes, ends)
                if reply.status in ("timeout", "interrupted"):
                    await self._kill_processes_since(before)
            except asyncio.CancelledError:
                await _run_to_completion(self._stop_command(call, before))
                raise
            finally:
                self._channel.clear_call()
                pipes.close()
                _close_all(ends)
            return reply

    def interrupt(self) -> bool:
        """Raise KeyboardInterrupt in the running call, if there is one."""
        if not self.busy or not self.alive:
            return False
        self._interpreter.signal(signal.SIGINT)
        return True

    async def _run_call(self, call: Call, pipes: Pipes, ends: list[int] | None = None) -> ExecReply:
        """Send the call, and wait for its reply. `ends` are the descriptors that were sent, to be closed here."""
        is_sent = await self._channel.send_call(call)
        _close_all(ends or [])
        if not is_sent:
            await self.end("the code broke its control channel")
        timed_out = not await call.wait_reply(call.seconds_left)
        if timed_out:
            await self._interrupt_or_kill(call)
        pipes.drain()
        exit_code = shell_exit_code(self._exit_status.result()) if self._exit_status.done() else -1
        return call.result(timed_out=timed_out, exit_code=exit_code, reason=self._reason)

    async def _interrupt_or_kill(self, call: Call) -> None:
        """Interrupt first, which keeps variables; if there is no reply, end the container."""
        if call.reply.done():
            return
        self._interpreter.signal(signal.SIGINT)
        if not await call.wait_reply(_GRACE_SECONDS):
            await self.end("the call timed out and did not react to the interrupt")

    async def _stop_command(self, call: Call, before: frozenset[int]) -> None:
        await self._interrupt_or_kill(call)
        await self._kill_processes_since(before)

    def _processes(self) -> frozenset[int]:
        """All processes of the container. Without namespaces, those that have left the process tree are missing."""
        pids = self.pids()
        return frozenset(descendants(pids[0])) if pids else frozenset()

    async def _kill_processes_since(self, before: frozenset[int]) -> None:
        """Kill the processes that a command has started, also those that have left its process group."""
        if not self.alive:
            return
        pids = self.pids()
        if pids and not await asyncio.to_thread(kill_descendants, pids[0], before):
            await self.end("the processes of a command could not be stopped")

    # -- end ----------------------------------------------------------------------------------------------------

    def on_ended(self, callback: Callable[[], None]) -> None:
        if self._end_task is not None and self._end_task.done():
            callback()
        else:
            self._end_callbacks.append(callback)

    async def end(self, reason: str) -> None:
        """End it and every process it started; returns when they are gone.

        Cancelling the caller does not cancel this.
        """
        await asyncio.shield(self.kill_nowait(reason))

    def kill_nowait(self, reason: str) -> asyncio.Task[None]:
        """Start to end it without waiting: one that dies slowly must not delay the watchdog for the others."""
        if self._reason is None:
            self._reason = reason
        self._channel.stop_reading()  # a reply that arrives now would report success
        if self._end_task is None:
            self._end_task = asyncio.create_task(self._finish())
        return self._end_task

    async def _finish(self) -> None:
        self._init.signal(signal.SIGKILL)
        if not self._init.has_pidfd:
            self._channel.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._exit_status), _SETUP_SECONDS)
        self._pipes.drain()
        self._close_descriptors()
        if (cgroup := self._cgroup) is not None:
            self._cgroup = None
            await asyncio.to_thread(cgroup.release)
        while self._end_callbacks:
            self._end_callbacks.pop()()

    def _on_channel_broken(self, reason: str) -> None:
        """An invalid frame: the channel is not read any more, and the container is killed."""
        if self._exit_status.done():
            return
        if self._reason is None:
            self._reason = "oom" if self.oom_killed else reason
        self._channel.fail_setup(reason)
        self._channel.stop_reading()
        self._init.signal(signal.SIGKILL)

    def _on_exit(self, status: int) -> None:
        if self._exit_status.done():
            return
        if self.oom_killed:
            self._reason = "oom"
        elif self._reason is None:
            self._reason = describe_exit(status)
        self._exit_status.set_result(status)
        self._init.mark_exited()
        self._interpreter.mark_exited()
        self._channel.fail_setup(describe_exit(status))
        self._channel.peer_closed()

    def _close_descriptors(self) -> None:
        """Idempotent."""
        self._channel.close()
        self._pipes.close()
        self._init.close()
        self._interpreter.close()
        if self._tree is not None:
            self._tree.close()
            self._tree = None


def _close_all(descriptors: list[int]) -> None:
    """Close the descriptors, once."""
    while descriptors:
        os.close(descriptors.pop())


async def _run_to_completion(work: Coroutine[Any, Any, None]) -> None:
    """Run short work to its end, however often the caller is cancelled meanwhile."""
    task = asyncio.create_task(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)
