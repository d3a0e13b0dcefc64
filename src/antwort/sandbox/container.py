"""One container as the server sees it: run code in it, interrupt it, reach its files, end it.

The code inside is hostile. It can say anything on the channel, so what it says is only ever *its own* result: a frame
that is not the answer to the question just asked ends the container. How it ended (out of memory, timed out,
killed) is told by the kernel, never by the code.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from . import answers
from .answers import Answer, Image
from .capture import Capture, StreamName
from .cgroups import Groups, Ward
from .errors import CannotStart, Ended
from .files import Tree
from .jail import mounts, wire
from .limits import Limits
from .zygotes import Zygote

Status = Literal["success", "error", "exit", "interrupted", "timeout", "ended"]
OnOutput = Callable[[StreamName, str], None]

_READ_BYTES: Final = 1 << 16
_DRAIN_READS: Final = 64
_SETUP_SECONDS: Final = 30.0
_GRACE_SECONDS: Final = 0.5
_PAUSE_SECONDS: Final = 0.05
_LAST_WORDS_SECONDS: Final = 0.2
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one call came to. `status` `ended` means the container is gone; `reason` says why."""

    status: Status
    exit_code: int
    stdout: str
    stderr: str
    output: list[tuple[StreamName, str]]
    echo: str | None = None
    error: dict[str, str] | None = None
    images: list[Image] = field(default_factory=list[Image])
    images_left_out: int = 0
    """They were more, or larger, than one answer carries."""
    seconds: float = 0.0
    reason: str | None = None
    cut_bytes: int = 0


@dataclass(slots=True)
class _Call:
    token: str
    answer: asyncio.Future[Answer | None]
    capture: Capture
    on_output: OnOutput | None


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
    """A forked interpreter. Made by `launch`; calls run one after the other."""

    def __init__(self, channel: socket.socket, output: int, errors: int, uid: int | None = None) -> None:
        self.number = next(_numbers)
        self._loop = asyncio.get_running_loop()
        self._channel = channel
        self._uid = uid
        self._pipes: dict[int, StreamName] = {output: "stdout", errors: "stderr"}
        self._init_pidfd = -1
        self._pidfd = -1
        self._frames = wire.Decoder(answers.LARGEST_HEADER)
        self._hello: asyncio.Future[None] = self._loop.create_future()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._handed_over: list[int] = []
        self._call: _Call | None = None
        self._turn = asyncio.Lock()
        self._died: asyncio.Future[int] = self._loop.create_future()
        self._reason: str | None = None
        self._ward: Ward | None = None
        self._tree: Tree | None = None
        self._gone: list[Callable[[], None]] = []
        self._ending: asyncio.Task[None] | None = None
        self._paused: set[int] = set()
        self.limits = Limits()
        self.calls = 0

    # -- birth --------------------------------------------------------------------------------------------------

    @classmethod
    async def fork(cls, zygote: Zygote) -> Container:
        """A spare: forked and walled in by namespaces, waiting for its limits."""
        ours, theirs = socket.socketpair()
        output, output_end = os.pipe()
        errors, errors_end = os.pipe()
        container = cls(ours, output, errors, zygote.uid)
        for readable in (ours.fileno(), output, errors):
            os.set_blocking(readable, False)
        try:
            container._init_pidfd = await zygote.fork(
                f"c{container.number}", [theirs.fileno(), output_end, errors_end], container._has_died
            )
        except BaseException:
            container._release()
            raise
        finally:
            theirs.close()
            os.close(output_end)
            os.close(errors_end)
        container._loop.add_reader(ours, container._heard)
        for pipe in (output, errors):
            container._loop.add_reader(pipe, container._printed, pipe)
        await container._introduced(container._hello)
        container._pidfd = container._handed_over.pop() if container._handed_over else -1
        return container

    async def settle(self, limits: Limits, settings: Settings, *, limited: bool) -> None:
        """Send the limits and wait until the door is locked."""
        self.limits = limits
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
            await self._send(wire.encode(header))
        await self._introduced(self._ready)
        self._tree = Tree(self._handed_over, self._uid)
        self._handed_over = []

    async def _introduced(self, word: asyncio.Future[None]) -> None:
        try:
            await asyncio.wait_for(asyncio.shield(word), _SETUP_SECONDS)
        except (TimeoutError, CannotStart) as error:
            await self.end("it did not start")
            raise CannotStart(f"a container did not start: {error or 'it took too long'}") from error
        except asyncio.CancelledError:
            await self.end("nobody waits for it any more")
            raise

    async def guard(self, groups: Groups) -> None:
        """Put it into a control group of its own, before any code of a user runs in it."""
        making = asyncio.ensure_future(asyncio.to_thread(groups.ward, self.pids()))
        try:
            self._ward = await asyncio.shield(making)
        except asyncio.CancelledError:
            self._ward = await making  # the thread makes it all the same, and it must be removed again
            raise

    # -- use ----------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        return not self._died.done() and self._reason is None

    @property
    def busy(self) -> bool:
        return self._call is not None

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
    def files(self) -> Tree:
        """Its files; they can still be read after it has died by itself, until it is ended."""
        tree = self._tree  # asked from other threads: it may be closed between two looks
        if tree is None:
            raise Ended(self._reason or "it never started")
        return tree

    def pids(self) -> list[int]:
        """Host process ids of init and interpreter."""
        return [pid for pid in map(_pid_of, (self._init_pidfd, self._pidfd)) if pid > 0]

    async def execute(
        self,
        code: str,
        *,
        timeout: float,  # noqa: ASYNC109 - for the code inside, not for this call
        echo: bool = True,
        packages: str | None = None,
        on_output: OnOutput | None = None,
    ) -> Outcome:
        """Run the code. Past the timeout it is interrupted; if that does not help, the container is ended.

        `packages` is the name of a set in its annex, importable from now on.
        """
        async with self._turn:
            if not self.alive:
                raise Ended(self._reason or "it never started")
            self.calls += 1
            started = time.monotonic()
            call = _Call(secrets.token_hex(8), self._loop.create_future(), Capture(self.limits.output_bytes), on_output)
            self._listen_again()
            self._call = call
            try:
                question = {"call": call.token, "code": code, "echo": echo, "packages": packages}
                return await self._ask(call, wire.encode(question), timeout=timeout, started=started)
            except asyncio.CancelledError:
                # Nobody waits for the answer any more, and the next call must not find this one still running.
                await _insist(self._stop_call(call))
                self._drain()  # nor read what it printed
                raise
            finally:
                self._call = None

    def when_gone(self, then: Callable[[], None]) -> None:
        if self._ending is not None and self._ending.done():
            then()
        else:
            self._gone.append(then)

    def interrupt(self) -> bool:
        """Raise KeyboardInterrupt in the running call, if there is one."""
        if self._call is None or not self.alive:
            return False
        _signal(self._pidfd, signal.SIGINT)
        return True

    async def end(self, reason: str) -> None:
        """End it and everything it started; returns when the kernel says that it is gone.

        Whoever waits for this may give up waiting; it goes on all the same.
        """
        await asyncio.shield(self.condemn(reason))

    def condemn(self, reason: str) -> asyncio.Task[None]:
        """End it without waiting for that: one that dies slowly must not keep the watchdog from the others."""
        if self._reason is None:
            self._reason = reason
        if self._ending is None:
            self._ending = asyncio.create_task(self._finish())
        return self._ending

    async def _finish(self) -> None:
        _signal(self._init_pidfd, signal.SIGKILL)
        if self._init_pidfd < 0:
            self._channel.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._died), _SETUP_SECONDS)
        self._drain()
        self._release()
        if (ward := self._ward) is not None:
            self._ward = None
            await asyncio.to_thread(ward.release)
        while self._gone:
            self._gone.pop()()

    # -- the call -----------------------------------------------------------------------------------------------

    async def _ask(self, call: _Call, question: bytes, *, timeout: float, started: float) -> Outcome:  # noqa: ASYNC109 - as above
        timed_out = False
        deadline = started + timeout
        if not await self._put(question, call, deadline):
            await self.end("the code broke its channel")
        if not await _settled(call.answer, deadline - time.monotonic()):
            timed_out = True
            await self._stop_call(call)
        self._drain()
        return self._outcome(call, time.monotonic() - started, timed_out=timed_out)

    async def _put(self, question: bytes, call: _Call, deadline: float) -> bool:
        """Send it whole. It does not fit at once only if it is long, or if the code reads its channel no more."""
        try:
            sent = self._channel.send(question)
        except BlockingIOError:
            sent = 0
        except OSError:
            return False
        if sent == len(question):
            return True
        sending = asyncio.create_task(self._send(question[sent:]))
        try:
            # An answer before the whole question was sent is none; and no answer is the sign that it has died.
            seconds = max(0.001, deadline - time.monotonic())
            await asyncio.wait([sending, call.answer], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            return sending.done() and sending.exception() is None
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _stop_call(self, call: _Call) -> None:
        """Interrupt first: variables survive. Then end the container: nothing does."""
        if call.answer.done():
            return
        _signal(self._pidfd, signal.SIGINT)
        if not await _settled(call.answer, _GRACE_SECONDS):
            await self.end("the call ran past its time and did not heed the interrupt")

    def _outcome(self, call: _Call, seconds: float, *, timed_out: bool) -> Outcome:
        if call.on_output is not None:
            for name in ("stdout", "stderr"):
                if rest := call.capture.rest(name):
                    call.on_output(name, rest)
        answer = call.answer.result() if call.answer.done() else None
        common: dict[str, Any] = {
            "stdout": call.capture.text("stdout"),
            "stderr": call.capture.text("stderr"),
            "output": call.capture.interleaved(),
            "seconds": seconds,
            "cut_bytes": call.capture.cut_bytes,
        }
        if answer is None:
            status: Status = "timeout" if timed_out else "ended"
            code = self._died.result() if self._died.done() and not timed_out else -1
            return Outcome(status=status, exit_code=code, reason=self._reason, **common)
        return Outcome(
            status="timeout" if timed_out else answer.status,
            exit_code=-1 if timed_out else answer.exit_code,
            echo=answer.echo,
            error=answer.error,
            images=answer.images,
            images_left_out=answer.left_out,
            **common,
        )

    # -- what comes from inside -------------------------------------------------------------------------------

    async def _send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._channel, data)

    def _heard(self) -> None:
        try:
            if self._ready.done():
                # Without room for descriptors the kernel drops any that the code sends to exhaust ours.
                data, descriptors = self._channel.recv(_READ_BYTES), []
            else:
                data, descriptors, _, _ = socket.recv_fds(self._channel, _READ_BYTES, 3)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        if data and self._ready.done() and self._call is None:
            self._break("the code sent an answer that nobody had asked for")  # before any of it is kept
            return
        if not data:
            self._loop.remove_reader(self._channel)
            # Usually the interpreter is ending and init is about to say how; if not, the code closed the channel.
            self._loop.call_later(_LAST_WORDS_SECONDS, self._break, "the code closed its channel")
            return
        try:
            for frame in self._frames.feed(data):
                # After a frame that is wrong no other is believed; before that they carry descriptors, to be closed.
                if self._reason is None or not self._ready.done():
                    self._take(frame, descriptors)
        except wire.BrokenFrame as error:
            self._break(f"the code broke its channel: {error}")

    def _take(self, frame: wire.Frame, descriptors: list[int]) -> None:
        header = frame[0]
        if not self._ready.done():
            # Until the door is locked only our own code speaks.
            waiting = self._ready if self._hello.done() else self._hello
            if "failed" in header:
                waiting.set_exception(CannotStart(str(header["failed"])))
            else:
                self._handed_over += descriptors
                waiting.set_result(None)
            return
        call = self._call
        answer = answers.read(frame, call.token) if call is not None and not call.answer.done() else None
        if call is None or answer is None:
            self._break("the code sent an answer that nobody had asked for")
            return
        call.answer.set_result(answer)

    def _break(self, reason: str) -> None:
        """The channel cannot be trusted any more, so the container ends."""
        if self._died.done():
            return
        if self._reason is None:
            self._reason = self._verdict() or reason
        self._never_ready(reason)
        if self._channel.fileno() >= 0:
            self._loop.remove_reader(self._channel)  # whatever else it says is not worth a byte of ours
        _signal(self._init_pidfd, signal.SIGKILL)

    def _printed(self, pipe: int) -> None:
        try:
            data = os.read(pipe, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(pipe)
            return
        self._keep(pipe, data)
        if self._call is None:
            # Something left behind prints while nobody listens: read it slowly, or a flood would keep us busy.
            self._loop.remove_reader(pipe)
            self._paused.add(pipe)
            self._loop.call_later(_PAUSE_SECONDS, self._listen_to, pipe)

    def _listen_to(self, pipe: int) -> None:
        if pipe in self._paused:
            self._paused.remove(pipe)
            self._loop.add_reader(pipe, self._printed, pipe)

    def _listen_again(self) -> None:
        """Before a call: throw away what was printed between the calls, then read at full speed."""
        if self._paused:
            self._drain()
        for pipe in tuple(self._paused):
            self._listen_to(pipe)

    def _keep(self, pipe: int, data: bytes) -> None:
        if self._call is None:
            return  # printed between calls by something left behind: it belongs to no result
        text = self._call.capture.feed(self._pipes[pipe], data)
        if text and self._call.on_output is not None:
            self._call.on_output(self._pipes[pipe], text)

    def _drain(self) -> None:
        """Read what was printed before the answer; a writer that never stops gets no more than its share."""
        for pipe in self._pipes:
            for _ in range(_DRAIN_READS):
                try:
                    data = os.read(pipe, _READ_BYTES)
                except OSError:
                    break
                if not data:
                    break
                self._keep(pipe, data)

    # -- death --------------------------------------------------------------------------------------------------

    def _has_died(self, status: int) -> None:
        if self._died.done():
            return
        if self._reason is None:
            self._reason = self._verdict() or describe(status)
        elif self._ward is not None and self._ward.out_of_memory():
            self._reason = "oom"
        self._died.set_result(status)
        self._never_ready(describe(status))
        if self._call is not None and not self._call.answer.done():
            self._call.answer.set_result(None)

    def _never_ready(self, reason: str) -> None:
        for word in (self._hello, self._ready):
            if not word.done():
                word.set_exception(CannotStart(reason))
                word.exception()  # seen: a container nobody waits for is no error

    def _verdict(self) -> str | None:
        return "oom" if self._ward is not None and self._ward.out_of_memory() else None

    def _release(self) -> None:
        """Close everything; safe to call twice."""
        if self._channel.fileno() >= 0:
            self._loop.remove_reader(self._channel)
            self._loop.remove_writer(self._channel)
            self._channel.close()
        self._paused.clear()
        for pipe in self._pipes:
            self._loop.remove_reader(pipe)
            os.close(pipe)
        self._pipes = {}
        for name in ("_init_pidfd", "_pidfd"):
            if getattr(self, name) >= 0:
                os.close(getattr(self, name))
                setattr(self, name, -1)
        while self._handed_over:  # nobody waited for them to the end
            os.close(self._handed_over.pop())
        if self._tree is not None:
            self._tree.close()
            self._tree = None


def describe(status: int) -> str:
    """How a process ended, in words."""
    if status >= 0 and status <= 128:  # noqa: PLR2004 - above 128 init passes on a signal
        return f"the interpreter exited with code {status}"
    number = -status if status < 0 else status - 128
    try:
        return f"the interpreter was ended by {signal.Signals(number).name}"
    except ValueError:
        return f"the interpreter was ended with status {status}"


async def _settled(answer: asyncio.Future[Answer | None], seconds: float) -> bool:
    done, _ = await asyncio.wait([answer], timeout=max(0.0, seconds))
    return bool(done)


async def _insist(work: Coroutine[Any, Any, None]) -> None:
    """Do it to its end, however often whoever waits is cancelled meanwhile. For what is over in a moment."""
    task = asyncio.create_task(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)


def _signal(pidfd: int, number: signal.Signals) -> None:
    if pidfd >= 0:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, number)


def _pid_of(pidfd: int) -> int:
    """The process id in our own pid namespace."""
    if pidfd < 0:
        return -1
    with open(f"/proc/self/fdinfo/{pidfd}", encoding="ascii") as lines:  # noqa: PTH123 - not a path of ours
        for line in lines:
            if line.startswith("Pid:"):
                return int(line.split()[1])
    return -1
