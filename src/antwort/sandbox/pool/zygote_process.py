"""Zygote process on the server's side: forks containers on command and reports their exits."""

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
from antwort.sandbox.host.process import ProcessHandle
from antwort.sandbox.pool.preload import Stack

_START_SECONDS: Final = 60.0
_FORK_SECONDS: Final = 30.0
_MESSAGE_BYTES: Final = 4096
_SOCKET_TYPE: Final = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_DGRAM

OnExit = Callable[[int], None]


class ZygoteProcess:
    """One running zygote: `start` it, `fork` from it; when `alive` is false, start another."""

    def __init__(self, process: asyncio.subprocess.Process, commands: socket.socket, uid: int | None) -> None:
        self._process = process
        self.uid = uid
        """The user that it and its containers run as, if not the server's own."""
        self._commands = commands
        self._forks: dict[str, asyncio.Future[ProcessHandle]] = {}
        self._exit_callbacks: dict[str, OnExit] = {}
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.alive = True
        self.fork_count = 0
        commands.setblocking(False)  # noqa: FBT003 - the socket's own way
        asyncio.get_running_loop().add_reader(commands, self._on_readable)

    @classmethod
    async def start(
        cls, stack: Stack, layers: frozenset[str], *, packages: Path | None = None, uid: int | None = None
    ) -> ZygoteProcess:
        server_end, zygote_end = socket.socketpair(socket.AF_UNIX, _SOCKET_TYPE)
        if "namespaces" in layers:
            launch = bubblewrap.zygote(stack, zygote_end.fileno(), layers, packages, uid)
        else:
            launch = bubblewrap.unjailed_zygote(stack, zygote_end.fileno(), layers)
        try:
            process = await asyncio.create_subprocess_exec(
                *launch.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env={},
                cwd="/",
                pass_fds=[zygote_end.fileno(), *launch.descriptors],
                start_new_session=True,
            )
        finally:
            zygote_end.close()
            launch.close()
        zygote = cls(process, server_end, uid)
        try:
            await asyncio.wait_for(zygote._ready, _START_SECONDS)
        except (TimeoutError, CannotStart, asyncio.CancelledError) as error:
            await zygote.stop()
            if isinstance(error, asyncio.CancelledError):
                raise
            stderr = await zygote._read_stderr()
            raise CannotStart(f"a zygote did not start: {error or 'timed out'}; {stderr}") from error
        return zygote

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def containers(self) -> int:
        return len(self._exit_callbacks)

    async def fork(self, name: str, descriptors: list[int], on_exit: OnExit) -> ProcessHandle:
        """Fork a container with these descriptors; returns its first process."""
        if not self.alive:
            raise CannotStart("the zygote has ended")
        forked: asyncio.Future[ProcessHandle] = asyncio.get_running_loop().create_future()
        self._forks[name] = forked
        self._exit_callbacks[name] = on_exit
        self.fork_count += 1
        try:
            socket.send_fds(self._commands, [json.dumps({"fork": name}).encode()], descriptors)
            return await asyncio.wait_for(forked, _FORK_SECONDS)
        except (OSError, TimeoutError) as error:
            self._exit_callbacks.pop(name, None)
            if not isinstance(error, TimeoutError):
                self._mark_dead(str(error))  # so that a retry uses another zygote
            raise CannotStart(f"a container could not be forked: {error}") from error
        except asyncio.CancelledError:
            if forked.done() and not forked.cancelled() and forked.exception() is None:
                forked.result().close()  # the reply came at the same moment
            raise
        finally:
            self._forks.pop(name, None)

    async def stop(self) -> None:
        """Kill the zygote and with it all its containers."""
        self._mark_dead("stopped")
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        await self._process.wait()

    async def _read_stderr(self) -> str:
        if self._process.stderr is None:
            return ""
        data = await self._process.stderr.read(4000)
        return data.decode(errors="replace").strip()

    def _on_readable(self) -> None:
        try:
            message, descriptors, _, _ = socket.recv_fds(self._commands, _MESSAGE_BYTES, 1)
        except BlockingIOError:
            return
        except OSError as error:
            self._mark_dead(str(error))
            return
        if not message:
            self._mark_dead("the zygote has ended")
            return
        self._on_message(json.loads(message), descriptors)

    def _on_message(self, message: dict[str, Any], descriptors: list[int]) -> None:
        match message:
            case {"ready": True}:
                self._ready.set_result(None)
            case {"failed": str(reason)}:
                self._mark_dead(reason)
            case {"forked": str(name)}:
                process = ProcessHandle(descriptors.pop()) if descriptors else ProcessHandle(pid=message.get("pid", -1))
                forked = self._forks.get(name)
                if forked is not None and not forked.done():
                    forked.set_result(process)
                else:
                    process.close()  # the caller was cancelled
            case {"refused": str(name), "reason": str(reason)}:
                forked = self._forks.get(name)
                if forked is not None and not forked.done():
                    forked.set_exception(CannotStart(reason))
                self._exit_callbacks.pop(name, None)
            case {"ended": str(name), "status": int(status)}:
                if (on_exit := self._exit_callbacks.pop(name, None)) is not None:
                    on_exit(status)
            case _:
                pass

    def _mark_dead(self, reason: str) -> None:
        if not self.alive:
            return
        self.alive = False
        asyncio.get_running_loop().remove_reader(self._commands)
        self._commands.close()
        for waiting in (self._ready, *self._forks.values()):
            if not waiting.done():
                waiting.set_exception(CannotStart(reason))
        # Its containers die with it: the kernel ends their pid namespace.
        for on_exit in list(self._exit_callbacks.values()):
            on_exit(-signal.SIGKILL)
        self._exit_callbacks.clear()
