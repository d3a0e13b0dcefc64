"""Test oracle: folds a stream of events back into the response. Written independently of the turn. Pure."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from antwort.api import events as wire
from antwort.api.events import AnyEvent
from antwort.api.responses import Response


def fold(events: Iterable[AnyEvent]) -> Response:
    """The response of these events: items from the item events, the rest from the last response event."""
    response: Response | None = None
    output: dict[int, dict[str, Any]] = {}
    for event in events:
        match event:
            case wire.ItemEvent():
                output[event.output_index] = event.item
            case wire.ResponseEvent():
                response = event.response
            case _:
                pass
    if response is None:
        raise ValueError("no event carries a response")
    folded = copy.copy(response)
    folded.output = [output[index] for index in sorted(output)]
    if folded.ended:
        folded.output = [_ended(item) for item in folded.output]
    return folded


def _ended(item: dict[str, Any]) -> dict[str, Any]:
    return {**item, "status": "incomplete"} if item.get("status") == "in_progress" else item
