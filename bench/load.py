"""Asks a server, many times at once, and says how it went. Light, so that little of the machine goes to asking.

It runs as a process of its own: a plan as JSON on its command line, one line of JSON as its answer. Each connection
asks again as soon as it is answered, until the time is over; what is under way then is waited for. With `hold` each
asks once, and stays with its stream, once all have heard their last mark, until standard input is closed.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import cast

import uvloop

PATIENCE = 120.0

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_LAST_CHUNK = b"0\r\n\r\n"


@dataclass
class Plan:
    """What to ask. Every answer must hold all marks, in their order; when each came is measured."""

    port: int
    key: str
    path: str
    body: str
    marks: list[str]
    connections: int = 1
    seconds: float = 1.0
    hold: bool = False

    def request(self) -> bytes:
        """The bytes that go out, each time the same."""
        body = self.body.encode()
        lines = (
            f"POST {self.path} HTTP/1.1",
            f"host: 127.0.0.1:{self.port}",
            f"authorization: Bearer {self.key}",
            "content-type: application/json",
            f"content-length: {len(body)}",
        )
        return "\r\n".join((*lines, "", "")).encode() + body


@dataclass
class Outcome:
    """What came of it. `heard` holds, for each mark, how long after its request each caller heard it."""

    asked: int = 0
    answered: int = 0
    seconds: float = 0.0
    heard: list[list[float]] = field(default_factory=list[list[float]])
    refusals: list[str] = field(default_factory=list[str])


class Caller(asyncio.Protocol):
    """One connection."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self._held = bytearray()
        self._heard = 0
        self._asked = 0.0
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # a stream gets nothing else

    def ask(self) -> None:
        """Send the request, again."""
        self._held.clear()
        self._heard = 0
        self._asked = perf_counter()
        self._crowd.outcome.asked += 1
        self.transport.write(self._crowd.request)

    def data_received(self, data: bytes) -> None:
        self._held += data
        self._listen()
        if self._heard == len(self._crowd.marks) and self._crowd.plan.hold:
            self.end()
        elif self._whole():
            missing = self._crowd.marks[self._heard :]
            if missing or not self._held.startswith(b"HTTP/1.1 200"):
                self.end(bytes(self._held[:300]).decode(errors="replace"))
            elif perf_counter() < self._crowd.until:
                self._crowd.outcome.answered += 1
                self.ask()
            else:
                self.end()

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(f"the connection was lost: {exc}")

    def _listen(self) -> None:
        marks = self._crowd.marks
        while self._heard < len(marks) and marks[self._heard] in self._held:
            self._crowd.outcome.heard[self._heard].append(perf_counter() - self._asked)
            self._heard += 1

    def _whole(self) -> bool:
        end = self._held.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = bytes(self._held[:end])
        if (length := _LENGTH.search(head)) is not None:
            return len(self._held) >= end + 4 + int(length[1])
        return _CHUNKED.search(head) is not None and self._held.endswith(_LAST_CHUNK)

    def end(self, refusal: str = "") -> None:
        """It is over for this one, well or not."""
        if self.over.done():
            return
        self.over.set_result(None)
        if refusal:
            self._crowd.outcome.refusals.append(refusal)
        else:
            self._crowd.outcome.answered += 1


class Crowd:
    """All callers together."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.request = plan.request()
        self.marks = [mark.encode() for mark in plan.marks]
        self.outcome = Outcome(heard=[[] for _ in plan.marks])
        self.until = 0.0

    async def ask(self) -> list[Caller]:
        """Connect all, then let all ask at once."""
        loop = asyncio.get_running_loop()
        opening = (loop.create_connection(lambda: Caller(self), "127.0.0.1", self.plan.port) for _ in self._places())
        callers = [caller for _, caller in await asyncio.gather(*opening)]
        begun = perf_counter()
        self.until = begun + self.plan.seconds
        for caller in callers:
            caller.ask()
        await asyncio.wait([caller.over for caller in callers], timeout=PATIENCE)
        self.outcome.seconds = perf_counter() - begun
        for caller in callers:
            caller.end(f"no answer after {PATIENCE:.0f} s")
        return callers

    def _places(self) -> range:
        return range(self.plan.connections)


async def main() -> None:
    """Ask, tell, and hold on where that was asked for."""
    crowd = Crowd(Plan(**json.loads(sys.argv[1])))
    callers = await crowd.ask()
    print(json.dumps(asdict(crowd.outcome)), flush=True)
    if crowd.plan.hold:
        await asyncio.to_thread(sys.stdin.read)
    for caller in callers:
        caller.transport.close()


if __name__ == "__main__":
    uvloop.run(main())
