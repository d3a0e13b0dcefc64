"""Control channel: the server's end of the socket pair to the interpreter in a container.

During setup only trusted code runs at the other end: it sends `hello`, then `ready`, with file descriptors attached.
After `ready` user code can send anything. A frame that is not the reply to the current call breaks the channel for
good, and `on_broken` is called with the reason.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Final

from antwort.sandbox.container import reply
from antwort.sandbox.container.call import Call
from antwort.sandbox.errors import CannotStart
from antwort.sandbox.jail import wire

_READ_BYTES: Final = 1 << 16
_MAX_DESCRIPTORS: Final = 3
_EXIT_STATUS_SECONDS: Final = 0.2
_UNEXPECTED_REPLY: Final = "the code sent an unexpected reply"


class Channel:
    """`wait_hello` and `wait_ready` during setup, then `send_call` for one call at a time."""

    def __init__(self, sock: socket.socket, on_broken: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._on_broken = on_broken
        self._decoder = wire.Decoder(reply.MAX_HEADER_BYTES)
        self._hello: asyncio.Future[None] = self._loop.create_future()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._descriptors: list[int] = []
        self.call: Call | None = None
        """The call in progress."""
        self._stopped = False
        sock.setblocking(False)  # noqa: FBT003 - the socket's own way

    def open(self) -> None:
        self._loop.add_reader(self._socket, self._on_readable)

    async def wait_hello(self) -> list[int]:
        """Wait for the first message; returns the descriptors that came with it."""
        await asyncio.shield(self._hello)
        return self._pop_descriptors()

    async def wait_ready(self) -> list[int]:
        """Wait until the container is locked down; returns the descriptors that came with the message."""
        await asyncio.shield(self._ready)
        return self._pop_descriptors()

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._socket, data)

    async def send_call(self, call: Call) -> bool:
        """Send the call's frame; returns whether all of it was sent. The reply is set on the call.

        One send is not enough if the frame is long, or if the code does not read its channel.
        """
        self.call = call
        try:
            if call.descriptors:
                sent = socket.send_fds(self._socket, [call.frame], call.descriptors)
            else:
                sent = self._socket.send(call.frame)
        except BlockingIOError:
            if call.descriptors:
                return False
            sent = 0
        except OSError:
            return False
        if sent == len(call.frame):
            return True
        sending = asyncio.create_task(self.send(call.frame[sent:]))
        try:
            # A reply before the whole frame was sent is invalid, or None because the interpreter has died.
            seconds = max(0.001, call.seconds_left)
            await asyncio.wait([sending, call.reply], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            return sending.done() and sending.exception() is None
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    def clear_call(self) -> None:
        """The call is over: any further frame is unexpected."""
        self.call = None

    def fail_setup(self, reason: str) -> None:
        """Setup has failed: `wait_hello` and `wait_ready` raise `CannotStart`."""
        for message in (self._hello, self._ready):
            if not message.done():
                message.set_exception(CannotStart(reason))
                message.exception()  # marked as retrieved: there may be no waiter

    def peer_closed(self) -> None:
        """The interpreter has exited: the call in progress gets no reply."""
        if self.call is not None and not self.call.reply.done():
            self.call.reply.set_result(None)

    def stop_reading(self) -> None:
        """Ignore everything that is still sent."""
        self._stopped = True
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)

    def close(self) -> None:
        """Idempotent."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()
        for descriptor in self._pop_descriptors():  # received, but never taken by a waiter
            os.close(descriptor)

    def _pop_descriptors(self) -> list[int]:
        descriptors, self._descriptors = self._descriptors, []
        return descriptors

    def _on_readable(self) -> None:
        is_ready = self._ready.done()
        try:
            if is_ready:
                # A plain recv: the kernel drops descriptors that the code sends to exhaust the server's.
                data, descriptors = self._socket.recv(_READ_BYTES), []
            else:
                data, descriptors, _, _ = socket.recv_fds(self._socket, _READ_BYTES, _MAX_DESCRIPTORS)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        self._descriptors += descriptors
        if data and is_ready and self.call is None:
            self._break(_UNEXPECTED_REPLY)  # before anything is buffered
            return
        if not data:
            self._loop.remove_reader(self._socket)
            # Usually the interpreter is exiting and its exit status follows; if not, the code closed the channel.
            self._loop.call_later(_EXIT_STATUS_SECONDS, self._on_broken, "the code closed its control channel")
            return
        try:
            for frame in self._decoder.feed(data):
                if not self._stopped:
                    self._on_frame(frame)
        except wire.InvalidFrame as error:
            self._break(f"the code broke its control channel: {error}")

    def _on_frame(self, frame: wire.Frame) -> None:
        if not self._ready.done():
            waiting = self._ready if self._hello.done() else self._hello
            if "failed" in frame[0]:
                waiting.set_exception(CannotStart(str(frame[0]["failed"])))
                waiting.exception()
            else:
                waiting.set_result(None)
            return
        call = self.call
        parsed = reply.parse(frame, call.token) if call is not None and not call.reply.done() else None
        if call is None or parsed is None:
            self._break(_UNEXPECTED_REPLY)
            return
        call.reply.set_result(parsed)

    def _break(self, reason: str) -> None:
        self.stop_reading()
        self._on_broken(reason)
