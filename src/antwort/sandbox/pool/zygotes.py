"""A zygote as the server sees it: a process behind a command socket, that forks containers and reports their deaths."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from antwort.sandbox.errors import CannotStart
from antwort.sandbox.host import bubblewrap
from antwort.sandbox.host.process import Process
from antwort.sandbox.pool.preload import Stack

_START_SECONDS: Final = 60.0
_FORK_SECONDS: Final = 30.0
_MESSAGE_BYTES: Final = 4096
_KIND: Final = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_DGRAM

Ended = Callable[[int], None]


class ZygoteProcess:
    """One running zygote. `start` it, `fork` from it; when `alive` turns false, make another."""

    def __init__(self, process: asyncio.subprocess.Process, commands: socket.socket, uid: int | None) -> None:
        self._process = process
        self.uid = uid
        """The user it and its containers run as, if that is not our own."""
        self._commands = commands
        self._forks: dict[str, asyncio.Future[Process]] = {}
        self._listeners: dict[str, Ended] = {}
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.alive = True
        self.forked = 0
        commands.setblocking(False)  # noqa: FBT003 - the socket's own way
        asyncio.get_running_loop().add_reader(commands, self._heard)

    @classmethod
    async def start(
        cls, stack: Stack, layers: frozenset[str], *, packages: Path | None = None, uid: int | None = None
    ) -> ZygoteProcess:
        ours, theirs = socket.socketpair(socket.AF_UNIX, _KIND)
        if "namespaces" in layers:
            launch = bubblewrap.zygote(stack, theirs.fileno(), layers, packages, uid)
        else:
            launch = bubblewrap.unjailed(stack, theirs.fileno(), layers)
        try:
            process = await asyncio.create_subprocess_exec(
                *launch.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env={},
                cwd="/",
                pass_fds=[theirs.fileno(), *launch.descriptors],
                start_new_session=True,
            )
        finally:
            theirs.close()
            launch.close()
        zygote = cls(process, ours, uid)
        try:
            await asyncio.wait_for(zygote._ready, _START_SECONDS)
        except (TimeoutError, CannotStart, asyncio.CancelledError) as error:
            await zygote.stop()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise CannotStart(
                f"a zygote did not start: {error or 'it took too long'}; {await zygote._last_words()}"
            ) from error
        return zygote

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def containers(self) -> int:
        return len(self._listeners)

    async def fork(self, name: str, descriptors: list[int], ended: Ended) -> Process:
        """Fork a container that gets these descriptors; answers its first process."""
        if not self.alive:
            message = "the zygote has ended"
            raise CannotStart(message)
        answer: asyncio.Future[Process] = asyncio.get_running_loop().create_future()
        self._forks[name] = answer
        self._listeners[name] = ended
        self.forked += 1
        try:
            socket.send_fds(self._commands, [json.dumps({"fork": name}).encode()], descriptors)
            return await asyncio.wait_for(answer, _FORK_SECONDS)
        except (OSError, TimeoutError) as error:
            self._listeners.pop(name, None)
            if not isinstance(error, TimeoutError):
                self._gone(str(error))  # or whoever tries again would be sent here again
            raise CannotStart(f"a container could not be forked: {error}") from error
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                answer.result().close()  # it came at the same moment
            raise
        finally:
            self._forks.pop(name, None)

    async def stop(self) -> None:
        """End the zygote and with it every container it ever forked."""
        self._gone("stopped")
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        await self._process.wait()

    async def _last_words(self) -> str:
        if self._process.stderr is None:
            return ""
        words = await self._process.stderr.read(4000)
        return words.decode(errors="replace").strip()

    def _heard(self) -> None:
        try:
            message, descriptors, _, _ = socket.recv_fds(self._commands, _MESSAGE_BYTES, 1)
        except BlockingIOError:
            return
        except OSError as error:
            self._gone(str(error))
            return
        if not message:
            self._gone("the zygote has ended")
            return
        self._take(json.loads(message), descriptors)

    def _take(self, message: dict[str, Any], descriptors: list[int]) -> None:
        match message:
            case {"ready": True}:
                self._ready.set_result(None)
            case {"failed": str(why)}:
                self._gone(why)
            case {"forked": str(name)}:
                process = Process(descriptors.pop()) if descriptors else Process(pid=message.get("pid", -1))
                answer = self._forks.get(name)
                if answer is not None and not answer.done():
                    answer.set_result(process)
                else:
                    process.close()  # nobody waits for it any more
            case {"refused": str(name), "why": str(why)}:
                answer = self._forks.get(name)
                if answer is not None and not answer.done():
                    answer.set_exception(CannotStart(why))
                self._listeners.pop(name, None)
            case {"ended": str(name), "status": int(status)}:
                if (listener := self._listeners.pop(name, None)) is not None:
                    listener(status)
            case _:
                pass

    def _gone(self, why: str) -> None:
        if not self.alive:
            return
        self.alive = False
        asyncio.get_running_loop().remove_reader(self._commands)
        self._commands.close()
        for waiting in (self._ready, *self._forks.values()):
            if not waiting.done():
                waiting.set_exception(CannotStart(why))
        # Its containers die with it: the kernel ends the pid namespace they live in.
        for listener in list(self._listeners.values()):
            listener(-signal.SIGKILL)
        self._listeners.clear()
