"""Enforces a forced `tool_choice`: a reply without the demanded call is asked for again, a few times. Pure.

Some models ignore `tool_choice`, and many servers pass it on without enforcing it. A client that forces a call cannot
use another call or a text, so it gets the demanded call, a refusal of the model, or an error.
"""

from __future__ import annotations

from antwort.api import items
from antwort.api.items import Item
from antwort.engine.classify import Offer
from antwort.engine.ports import ModelFault
from antwort.engine.reply.queue import ReplyQueue

_MAX_ATTEMPTS = 3
TOOL_CHOICE_NOT_FOLLOWED = "tool_choice_not_followed"


class CallDemand:
    """The demand of one response. `model` is the name that the request knows the model by."""

    def __init__(self, model: str, attempts: int = 0) -> None:
        self._model = model
        self._attempts = attempts

    @property
    def attempts(self) -> int:
        """How many replies lacked the call."""
        return self._attempts

    def is_open(self, offer: Offer, reply: ReplyQueue) -> bool:
        """Whether the reply may still contain the demanded call: until then text is kept, and not sent."""
        return bool(offer.demanded) and not (reply.has_accepted_call or reply.finished)

    def is_missed(self, offer: Offer, reply: ReplyQueue) -> bool:
        """Whether a whole reply lacks the demanded call. The model may refuse to answer."""
        return bool(offer.demanded) and not (reply.has_accepted_call or reply.is_cut or reply.is_refusal)

    def refusal(self, offer: Offer, name: str) -> str:
        """Why a call of another function is refused; empty if it is not."""
        if not offer.demanded or name in offer.demanded:
            return ""
        return f"'{name}' was not called: this answer must call {offer.demand}. Call it now."

    def repeat(self, offer: Offer, reply: ReplyQueue) -> list[Item]:
        """What the model reads before it is asked again; `ModelFault` after the last attempt."""
        self._attempts += 1
        if self._attempts >= _MAX_ATTEMPTS:
            raise ModelFault(
                f"Model '{self._model}' did not call {offer.client_demand} in {self._attempts} attempts, although "
                "'tool_choice' demands it. Use a model that supports 'tool_choice', or 'auto' with instructions that "
                "say when to call it.",
                code=TOOL_CHOICE_NOT_FOLLOWED,
            )
        reply.is_asked_again = True
        if reply.calls:  # the outputs of the refused calls say it
            return []
        text = f"The answer must call {offer.demand}. Call it now, without other text."
        return [items.read({"type": "message", "role": "user", "content": text})]
