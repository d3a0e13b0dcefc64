"""Strict reader of server-sent events: frames of an event name and one data line, or comments. Pure."""

from __future__ import annotations

import json
import re
from typing import Final

from antwort.conformance.grammar.rules import SentEvent
from antwort.conformance.grammar.violation import Violation, require, require_equal

_FRAME_RE: Final = re.compile(r"event: (\S+)\ndata: (\{.*\})")


def read_frames(stream: bytes) -> list[SentEvent]:
    """The events of a stream. `[DONE]` after the last one is tolerated, and so are line ends with CR."""
    text = stream.decode().replace("\r\n", "\n")
    require(text.endswith("\n\n"), "the stream ends with an empty line", text[-80:])
    events: list[SentEvent] = []
    for frame in text.removesuffix("\n\n").split("\n\n"):
        if frame.startswith(":") or frame == "data: [DONE]":
            continue
        found = _FRAME_RE.fullmatch(frame)
        if found is None:
            raise Violation("a frame is `event: NAME`, one line `data: {…}`, and no other field", frame)
        name, data = found.groups()
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            raise Violation("the data of a frame is JSON", frame) from None
        require_equal(event.get("type"), name, "the name of the frame is the `type` of its event")
        events.append(event)
    return events
