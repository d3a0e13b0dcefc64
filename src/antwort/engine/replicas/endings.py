"""Stores the end of a response that no process works on: failed or cancelled, with its last events."""

from __future__ import annotations

from antwort.api.events import AnyEvent, OutputItemDone, ResponseFailed, ResponseIncomplete, to_sse
from antwort.api.responses import Response
from antwort.engine.checkpoint.state import UnreadableCheckpoint, read_checkpoint
from antwort.engine.stores import Owner, ResponseStore, StoredResponse


async def store_end(store: ResponseStore, owner: Owner, stored: StoredResponse, response: Response) -> None:
    """Store a failed or cancelled response; in the background with the items of its checkpoint, and its last events."""
    events: list[AnyEvent] = []
    number = 0
    if response.background:
        try:
            checkpoint = read_checkpoint(await store.read_steps(owner, response.id))
        except UnreadableCheckpoint:
            checkpoint = None
        if checkpoint is not None:
            response.output, response.usage = checkpoint.output, checkpoint.totals.usage
            if checkpoint.begun is not None:
                events.append(OutputItemDone(output_index=len(checkpoint.items), item=checkpoint.begun.item))
        ending = ResponseIncomplete if response.status == "cancelled" else ResponseFailed
        events.append(ending(response=response))
        after = None if checkpoint is None else checkpoint.last_event
        number = await store.resume_response(owner, stored, after=after)
    frames: list[tuple[int, bytes]] = []
    for event in events:
        event.sequence_number = number + len(frames)
        frames.append((event.sequence_number, to_sse(event)))
    await store.finish_response(owner, response, events=frames)
