"""One container as the server sees it: run code in it, interrupt it, reach its files, end it.

The code inside is hostile. It can say anything on the channel, so what it says is only ever *its own* result. How it
ended (out of memory, timed out, killed) is told by the kernel and by our clock, never by the code.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from antwort.sandbox.container.call import Call, OnOutput
from antwort.sandbox.container.channel import Channel
from antwort.sandbox.container.pipes import Pipes
from antwort.sandbox.container.reply import ExecReply
from antwort.sandbox.errors import CannotStart, Ended
from antwort.sandbox.files.tree import FileTree
from antwort.sandbox.host.cgroups import Cgroup, Groups
from antwort.sandbox.host.process import Process, described, shell_code
from antwort.sandbox.jail import mounts, wire
from antwort.sandbox.limits import ContainerLimits
from antwort.sandbox.pool.zygotes import ZygoteProcess

_SETUP_SECONDS: Final = 30.0
_GRACE_SECONDS: Final = 0.5
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a container is told before the door is locked, besides its limits."""

    place: str = mounts.DATA
    packages: str | None = None
    annex: str | None = None
    """Where, below all packages, those are put that it is given later."""
    annex_place: str = mounts.ANNEX
    """Where it sees that itself."""
    path: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict[str, str])
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()


class Container:
    """A forked interpreter. `fork` it, `settle` it; then calls run one after the other."""

    def __init__(self, channel: socket.socket, output: int, errors: int, uid: int | None = None) -> None:
        self.number = next(_numbers)
        self.limits = ContainerLimits()
        self.calls = 0
        self.walled = True
        """It has files and a network of its own; else both are the host's, and say nothing about it."""
        self._uid = uid
        self._channel = Channel(channel, self._break)
        self._pipes = Pipes(output, errors)
        self._init = Process()
        self._interpreter = Process()
        self._turn = asyncio.Lock()
        self._died: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._reason: str | None = None
        self._ward: Cgroup | None = None
        self._tree: FileTree | None = None
        self._gone: list[Callable[[], None]] = []
        self._ending: asyncio.Task[None] | None = None

    # -- birth --------------------------------------------------------------------------------------------------

    @classmethod
    async def fork(cls, zygote: ZygoteProcess) -> Container:
        """A spare: forked and walled in by namespaces, waiting for its limits."""
        ours, theirs = socket.socketpair()
        output, output_end = os.pipe()
        errors, errors_end = os.pipe()
        container = cls(ours, output, errors, zygote.uid)
        try:
            container._init = await zygote.fork(
                f"c{container.number}", [theirs.fileno(), output_end, errors_end], container._has_died
            )
        except BaseException:
            container._release()
            raise
        finally:
            theirs.close()
            os.close(output_end)
            os.close(errors_end)
        container._channel.open()
        container._pipes.open()
        handed_over = await container._introduced(container._channel.hello())
        # Without such descriptors there are no namespaces either, and no init: both are one process.
        container._interpreter = Process(handed_over.pop()) if handed_over else container._init.by_number()
        return container

    async def guard(self, groups: Groups) -> None:
        """Put it into a control group of its own, before any code of a user runs in it."""
        making = asyncio.ensure_future(asyncio.to_thread(groups.ward, self.pids()))
        try:
            self._ward = await asyncio.shield(making)
        except asyncio.CancelledError:
            self._ward = await making  # the thread makes it all the same, and it must be removed again
            raise

    async def settle(self, limits: ContainerLimits, settings: Settings, *, limited: bool) -> None:
        """Send the limits and wait until the door is locked."""
        self.limits = limits
        self.walled = settings.place == mounts.DATA
        header = {
            "place": settings.place,
            "packages": settings.packages,
            "annex": settings.annex,
            "annex_place": settings.annex_place,
            "path": list(settings.path),
            "environment": settings.environment,
            "readable": list(settings.readable),
            "writable": list(settings.writable),
            "disk_bytes": limits.disk_bytes,
            "disk_files": limits.disk_files,
            "processes": limits.processes,
            # With a control group the kernel counts exactly; without, twice the share stops what outruns the watchdog.
            "memory_bytes": None if limited else 2 * limits.memory_bytes,
        }
        if self._ward is not None:
            await asyncio.to_thread(self._ward.limit, limits)
        with contextlib.suppress(OSError):  # if it has died meanwhile, the introduction says so
            await self._channel.send(wire.encode(header))
        self._tree = FileTree(await self._introduced(self._channel.ready()), self._uid)

    async def _introduced(self, word: Coroutine[Any, Any, list[int]]) -> list[int]:
        try:
            return await asyncio.wait_for(word, _SETUP_SECONDS)
        except (TimeoutError, CannotStart) as error:
            await self.end("it did not start")
            raise CannotStart(f"a container did not start: {error or 'it took too long'}") from error
        except asyncio.CancelledError:
            await self.end("nobody waits for it any more")
            raise

    # -- use ----------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        return not self._died.done() and self._reason is None

    @property
    def busy(self) -> bool:
        return self._channel.call is not None

    @property
    def reason(self) -> str | None:
        """Why it ended, or None while it lives."""
        return self._reason

    @property
    def starved(self) -> bool:
        """The kernel ended one of its processes for want of memory, though perhaps not the interpreter."""
        ward = self._ward  # asked from another thread: it may be released between two looks
        return ward is not None and ward.out_of_memory()

    @property
    def files(self) -> FileTree:
        """Its files; they can still be read after it has died by itself, until it is ended."""
        tree = self._tree  # asked from other threads: it may be closed between two looks
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
        """Run the code. Past the timeout it is interrupted; if that does not help, the container is ended.

        `packages` is the name of a set in its annex, importable from now on.
        """
        async with self._turn:
            if not self.alive:
                raise Ended(self._reason or "it never started")
            self.calls += 1
            limit = self.limits.output_bytes
            call = Call(code, timeout=timeout, output_bytes=limit, echo=echo, packages=packages, on_output=on_output)
            self._pipes.listen(call.add_output)
            try:
                return await self._ask(call)
            except asyncio.CancelledError:
                # Nobody waits for the answer any more, and the next call must not find this one still running.
                await _insist(self._stop(call))
                self._pipes.drain()  # nor read what it printed
                raise
            finally:
                self._pipes.ignore()
                self._channel.forget()

    def interrupt(self) -> bool:
        """Raise KeyboardInterrupt in the running call, if there is one."""
        if not self.busy or not self.alive:
            return False
        self._interpreter.signal(signal.SIGINT)
        return True

    async def _ask(self, call: Call) -> ExecReply:
        if not await self._channel.put(call):
            await self.end("the code broke its channel")
        timed_out = not await call.wait_reply(call.seconds_left)
        if timed_out:
            await self._stop(call)
        self._pipes.drain()
        exit_code = shell_code(self._died.result()) if self._died.done() else -1
        return call.result(timed_out=timed_out, exit_code=exit_code, reason=self._reason)

    async def _stop(self, call: Call) -> None:
        """Interrupt first: variables survive. Then end the container: nothing does."""
        if call.reply.done():
            return
        self._interpreter.signal(signal.SIGINT)
        if not await call.wait_reply(_GRACE_SECONDS):
            await self.end("the call ran past its time and did not heed the interrupt")

    # -- death --------------------------------------------------------------------------------------------------

    def when_gone(self, then: Callable[[], None]) -> None:
        if self._ending is not None and self._ending.done():
            then()
        else:
            self._gone.append(then)

    async def end(self, reason: str) -> None:
        """End it and everything it started; returns when the kernel says that it is gone.

        Whoever waits for this may give up waiting; it goes on all the same.
        """
        await asyncio.shield(self.condemn(reason))

    def condemn(self, reason: str) -> asyncio.Task[None]:
        """End it without waiting for that: one that dies slowly must not keep the watchdog from the others."""
        if self._reason is None:
            self._reason = reason
        self._channel.distrust()  # a last answer would say that all is well
        if self._ending is None:
            self._ending = asyncio.create_task(self._finish())
        return self._ending

    async def _finish(self) -> None:
        self._init.signal(signal.SIGKILL)
        if not self._init.held:
            self._channel.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._died), _SETUP_SECONDS)
        self._pipes.drain()
        self._release()
        if (ward := self._ward) is not None:
            self._ward = None
            await asyncio.to_thread(ward.release)
        while self._gone:
            self._gone.pop()()

    def _break(self, reason: str) -> None:
        """The channel cannot be trusted any more, so the container ends."""
        if self._died.done():
            return
        if self._reason is None:
            self._reason = "oom" if self.starved else reason
        self._channel.fail(reason)
        self._channel.distrust()
        self._init.signal(signal.SIGKILL)

    def _has_died(self, status: int) -> None:
        if self._died.done():
            return
        if self.starved:
            self._reason = "oom"
        elif self._reason is None:
            self._reason = described(status)
        self._died.set_result(status)
        self._init.ended()
        self._interpreter.ended()
        self._channel.fail(described(status))
        self._channel.hang_up()

    def _release(self) -> None:
        """Close everything; safe to call twice."""
        self._channel.close()
        self._pipes.close()
        self._init.close()
        self._interpreter.close()
        if self._tree is not None:
            self._tree.close()
            self._tree = None


async def _insist(work: Coroutine[Any, Any, None]) -> None:
    """Do it to its end, however often whoever waits is cancelled meanwhile. For what is over in a moment."""
    task = asyncio.create_task(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)
