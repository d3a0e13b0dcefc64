"""A call that a model is writing: its arguments so far, and its item once that has begun. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from antwort.api import items
from antwort.api.events import AnyEvent
from antwort.api.items import Item
from antwort.engine.checkpoint.steps import BegunCall
from antwort.engine.classify import ClientSide, FunctionOwner, ServerSide, is_run_by_client
from antwort.engine.hosted.guarded import GuardedCall, NamedCall
from antwort.engine.output_builder import OpenCall
from antwort.engine.partial_json import FreeTextReader, ObjectScanner, has_free_text

_MAX_HEAD = 256


@dataclass
class WrittenCall:
    """A call of a reply. Its item begins when the items before it have ended; until then the arguments are kept.

    A call with a `refusal` is not run and has no item: only the model reads why.
    """

    name: str
    call_id: str
    owner: FunctionOwner | None
    refusal: str = ""
    output: str = ""
    """The text that the model reads, once the call has run."""
    output_index: int = -1
    is_begun: bool = False
    is_ended: bool = False
    awaits_client: bool = False
    """It has ended, and the client has to act: its output comes with a later request."""
    is_broken: bool = False
    """Its arguments are malformed: the model may make it again once."""
    client_call: OpenCall | None = None
    hosted: GuardedCall | None = None
    is_started: bool = False
    """It runs beside the calls before it."""
    interrupted: BegunCall | None = None
    """Its end, if the server was stopped while it ran and before its item began."""
    _fragments: list[str] = field(default_factory=list[str])
    _head: str = ""
    """The first of the arguments."""
    _scanner: ObjectScanner = field(default_factory=ObjectScanner)
    _is_whole: bool = False
    """Whether the arguments are a complete JSON object; of custom tools: one with their text."""
    _free_text: FreeTextReader | None = None
    """Of custom tools: extracts the text from the JSON that the model writes."""

    @property
    def is_client_side(self) -> bool:
        """Whether the client runs the call."""
        return isinstance(self.owner, ClientSide) and not self.refusal

    @property
    def is_hosted(self) -> bool:
        """Whether a provider has the call."""
        return isinstance(self.owner, ServerSide) and not self.refusal

    @property
    def _is_custom(self) -> bool:
        return isinstance(self.owner, ClientSide) and self.owner.is_custom

    @property
    def arguments(self) -> str:
        return "".join(self._fragments)

    @property
    def runs_here(self) -> bool:
        """Whether the server is still to run the call."""
        return self.is_hosted and not (is_run_by_client(self.owner) or self.is_ended or self.interrupted)

    @property
    def is_written_whole(self) -> bool:
        """Whether its item begins only when its arguments are complete."""
        return isinstance(self.owner, ServerSide) and self.owner.is_written_whole

    @property
    def may_begin(self) -> bool:
        """Whether its item can begin before the reply is complete."""
        if not isinstance(self.owner, ServerSide) or not self.owner.is_written_whole:
            return True
        return self.owner.begins_at is not None and self.owner.begins_at.match(self._head) is not None

    @property
    def is_complete(self) -> bool:
        """Whether nothing more is expected of the call, although the reply continues."""
        return bool(self.refusal) or self._is_whole

    def feed(self, delta: str) -> Sequence[AnyEvent]:
        """Take the next part of the arguments; the events of it. What follows the end of the item is dropped."""
        if self.is_ended and not self.refusal:  # a refused call has no item: only the model reads it again
            return []
        self._fragments.append(delta)
        if len(self._head) < _MAX_HEAD:
            self._head += delta[: _MAX_HEAD - len(self._head)]
        if self.is_client_side and not self._scanner.is_complete:
            self._scanner.feed(delta)
            self._is_whole = self._scanner.is_complete and (not self._is_custom or has_free_text(self.arguments))
        return self._write(delta)

    def begin(self, opened: OpenCall | GuardedCall) -> Sequence[AnyEvent]:
        """Begin the item; the events of the arguments so far, as one part."""
        if isinstance(opened, OpenCall):
            self.client_call = opened
            self._free_text = FreeTextReader() if self._is_custom else None
        else:
            self.hosted = opened
        return self._write(self.arguments)

    def named(self, hosted: GuardedCall) -> NamedCall:
        return NamedCall(hosted, self.name, self.call_id)

    def _write(self, delta: str) -> Sequence[AnyEvent]:
        if self.client_call is not None:
            return self.client_call.write(self._free_text.feed(delta) if self._free_text else delta)
        return self.hosted.write(delta) if self.hosted is not None and delta else []

    def close(self, *, is_cut: bool) -> tuple[Sequence[AnyEvent], dict[str, Any]]:
        """The last events of a client-side call, and its item. `is_cut`: the reply was cut off."""
        assert self.client_call is not None  # noqa: S101 - only a client-side call that has begun is closed
        events: list[AnyEvent] = []
        is_partial = is_cut and not self._is_whole
        if self._free_text is not None:
            events += self.client_call.write(self._free_text.rest(cut=is_cut and not self._scanner.is_complete))
        elif not (is_partial or self.client_call.text.strip()):  # chat servers send "" for a call without parameters
            events += self.client_call.write("{}")
        events += self.client_call.close()
        return events, self.client_call.item("incomplete" if is_partial else "completed")

    def as_function_call(self) -> Item:
        """The call in the next request to the model: a function call, as the model wrote it."""
        return items.read(
            {
                "type": "function_call",
                "call_id": self.call_id,
                "name": self.name,
                "arguments": self.arguments or "{}",
            }
        )

    def as_output(self) -> Item:
        """Its output in the next request to the model."""
        text = self.refusal or self.output
        return items.read({"type": "function_call_output", "call_id": self.call_id, "output": text})
