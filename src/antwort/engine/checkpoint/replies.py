"""Saves and restores a reply of a model some of whose calls are not done. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from antwort.engine.checkpoint.state import OpenReply
from antwort.engine.checkpoint.steps import SavedCall, SavedReply
from antwort.engine.classify import FunctionOwner
from antwort.engine.ports import Finished
from antwort.engine.reply.calls import WrittenCall
from antwort.engine.reply.queue import ReplyQueue


def save_reply(reply: ReplyQueue) -> SavedReply:
    """A complete reply, without what has been sent of it."""
    assert reply.finished is not None  # noqa: S101 - hosted calls begin to run when the reply is complete
    keys = {id(call): key for key, call in reply.calls.items()}
    return SavedReply(
        first_index=reply.first_index,
        usage=reply.finished.usage,
        calls=[
            SavedCall(key, call.name, call.call_id, call.arguments, call.refusal, call.is_broken)
            for key, call in reply.calls.items()
        ],
        waiting=[keys[id(one)] if isinstance(one, WrittenCall) else [*one] for one in reply.waiting],
    )


def restore_reply(open_reply: OpenReply, owners: Mapping[str, FunctionOwner]) -> ReplyQueue:
    """The reply behind its last call that began: that call and those before it have ended, others are still to be run.

    Those that ran beside it have ended too: they are not run again.

    `owners` are the functions that are offered now. A call of one that is gone is refused.
    """
    saved = open_reply.saved
    reply = ReplyQueue(
        first_index=saved.first_index,
        finished=Finished("calls", saved.usage),
        has_accepted_call=True,
        is_saved=True,
    )
    for one in saved.calls:
        call = WrittenCall(one.name, one.call_id, owners.get(one.name), one.refusal, is_broken=one.is_broken)
        reply.calls[one.key] = call
        if one.key in open_reply.outputs:
            call.output = open_reply.outputs[one.key]
            call.is_begun = True
            call.awaits_client = one.key in open_reply.awaiting
            call.is_broken = one.key in open_reply.broken
        elif (begun := open_reply.beside.get(one.key)) is not None:
            call.interrupted = begun
        elif call.owner is None and not call.refusal:
            call.refusal = f"There is no tool '{call.name}'."
        call.feed(one.arguments)
        call.is_ended = call.is_begun
    waiting = saved.waiting[saved.waiting.index(open_reply.last) + 1 :]
    reply.waiting = deque(reply.calls[one] if isinstance(one, int) else one for one in waiting)
    return reply
