"""Our end of the socket pair to the interpreter in a container.

Until the door is locked only our own code speaks: it says `hello`, later `ready`, and hands over descriptors with each.
After that the code inside can say anything. A frame that is not the answer to the question just asked breaks the
channel for good, and whoever owns it is told why.
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
_MOST_DESCRIPTORS: Final = 3
_LAST_WORDS_SECONDS: Final = 0.2
_UNASKED: Final = "the code sent an answer that nobody had asked for"


class Channel:
    """`hello` and `ready` while it settles in, then `put` one call after the other."""

    def __init__(self, ours: socket.socket, broken: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = ours
        self._broken = broken
        self._frames = wire.Decoder(reply.MAX_HEADER_BYTES)
        self._hello: asyncio.Future[None] = self._loop.create_future()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._handed_over: list[int] = []
        self.call: Call | None = None
        """What was asked and is not over yet."""
        self._distrusted = False
        ours.setblocking(False)  # noqa: FBT003 - the socket's own way

    def open(self) -> None:
        self._loop.add_reader(self._socket, self._heard)

    async def hello(self) -> list[int]:
        """Wait for the first word; answers the descriptors that came with it."""
        await asyncio.shield(self._hello)
        return self._take_over()

    async def ready(self) -> list[int]:
        """Wait until the door is locked; the same."""
        await asyncio.shield(self._ready)
        return self._take_over()

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._socket, data)

    async def put(self, call: Call) -> bool:
        """Ask, and wait until all of it is sent; the answer goes to the call.

        It does not fit at once only if it is long, or if the code reads its channel no more.
        """
        self.call = call
        try:
            sent = self._socket.send(call.frame)
        except BlockingIOError:
            sent = 0
        except OSError:
            return False
        if sent == len(call.frame):
            return True
        sending = asyncio.create_task(self.send(call.frame[sent:]))
        try:
            # An answer before the whole question was sent is none; and no answer is the sign that it has died.
            seconds = max(0.001, call.seconds_left)
            await asyncio.wait([sending, call.reply], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            return sending.done() and sending.exception() is None
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    def forget(self) -> None:
        """The call is over: from now on nothing was asked."""
        self.call = None

    def fail(self, reason: str) -> None:
        """It will never be ready: whoever waits for that is told."""
        for word in (self._hello, self._ready):
            if not word.done():
                word.set_exception(CannotStart(reason))
                word.exception()  # seen: a container nobody waits for is no error

    def hang_up(self) -> None:
        """Nobody is left at the other end: no answer is all that comes."""
        if self.call is not None and not self.call.reply.done():
            self.call.reply.set_result(None)

    def distrust(self) -> None:
        """Whatever else it says is not worth a byte of ours."""
        self._distrusted = True
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)

    def close(self) -> None:
        """Safe to call twice."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()
        for descriptor in self._take_over():  # nobody waited for them to the end
            os.close(descriptor)

    def _take_over(self) -> list[int]:
        descriptors, self._handed_over = self._handed_over, []
        return descriptors

    def _heard(self) -> None:
        settled = self._ready.done()
        try:
            if settled:
                # Without room for descriptors the kernel drops any that the code sends to exhaust ours.
                data, descriptors = self._socket.recv(_READ_BYTES), []
            else:
                data, descriptors, _, _ = socket.recv_fds(self._socket, _READ_BYTES, _MOST_DESCRIPTORS)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        self._handed_over += descriptors
        if data and settled and self.call is None:
            self._break(_UNASKED)  # before any of it is kept
            return
        if not data:
            self._loop.remove_reader(self._socket)
            # Usually the interpreter is ending and init is about to say how; if not, the code closed the channel.
            self._loop.call_later(_LAST_WORDS_SECONDS, self._broken, "the code closed its channel")
            return
        try:
            for frame in self._frames.feed(data):
                if not self._distrusted:
                    self._take(frame)
        except wire.BrokenFrame as error:
            self._break(f"the code broke its channel: {error}")

    def _take(self, frame: wire.Frame) -> None:
        if not self._ready.done():
            waiting = self._ready if self._hello.done() else self._hello
            if "failed" in frame[0]:
                waiting.set_exception(CannotStart(str(frame[0]["failed"])))
                waiting.exception()
            else:
                waiting.set_result(None)
            return
        call = self.call
        answer = reply.parse(frame, call.token) if call is not None and not call.reply.done() else None
        if call is None or answer is None:
            self._break(_UNASKED)
            return
        call.reply.set_result(answer)

    def _break(self, reason: str) -> None:
        self.distrust()
        self._broken(reason)
