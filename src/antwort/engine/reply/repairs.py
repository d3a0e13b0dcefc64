"""Broken calls, whose arguments are malformed: the model may make each once more in a response. Pure.

After a second broken call, the function is withdrawn, and the model reads that it has to answer without it. A model
that calls it all the same ends the response as failed: it would be asked again up to the limit of turns.

Where a reply has calls for the client besides, the response would end with it. The model is then asked once for the
broken calls alone, and the response ends with those.
"""

from __future__ import annotations

from antwort.engine.checkpoint.steps import Totals
from antwort.engine.classify import Offer
from antwort.engine.ports import ModelFault
from antwort.engine.reply.queue import ReplyQueue

IN_PROGRESS = "The user's program has this call, and its result follows later. Do not make it again."
"""What the model reads of the other calls for the client when it is asked for the broken ones."""


def advice(totals: Totals, name: str) -> str:
    """What the model is to do about a broken call."""
    if name in totals.repaired:
        return f"Do not call '{name}' again. Answer without it, and say what you could not do."
    return "Make this call again, complete and corrected."


def note_broken_calls(totals: Totals, reply: ReplyQueue) -> None:
    """Note the broken calls of a whole reply."""
    broken = {call.name for call in reply.calls.values() if call.is_broken}
    again, first = broken & {*totals.repaired}, broken - {*totals.repaired}
    totals.withdrawn += sorted(again - {*totals.withdrawn})
    totals.repaired += sorted(first)
    totals.is_choice_met |= bool(again)
    if reply.awaits_client and not totals.only:
        totals.only = sorted(first)


def narrowed(offer: Offer, totals: Totals) -> Offer:
    """The offer for the next request.

    No forced choice after a hosted call, no hosted tools past `max_tool_calls`, no withdrawn functions; only those of
    broken calls if the client has calls to run already.
    """
    if totals.is_choice_met:
        offer = offer.with_auto_choice()
    if totals.is_client_only:
        offer = offer.client_only()
    if totals.withdrawn:
        offer = offer.without(frozenset(totals.withdrawn))
    return offer.only(frozenset(totals.only)) if totals.only else offer


def check_not_withdrawn(offer: Offer, name: str, model: str) -> None:
    """`ModelFault` if the model calls a function that is withdrawn."""
    if name in offer.withdrawn:
        raise ModelFault(f"Model '{model}' called '{name}' again after two calls of it with invalid arguments.")
