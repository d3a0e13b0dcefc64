"""Checks of compaction in its three forms, of the next request with the compacted history, and of token counts."""

from __future__ import annotations

from antwort.conformance.checks import behaviour
from antwort.conformance.client import Json
from antwort.conformance.endpoints.base import EndpointChecks, supported
from antwort.conformance.grammar import (
    check_grammar,
    check_item_keys,
    check_response_keys,
    check_sequence,
    require,
    require_equal,
)
from antwort.conformance.target import Once, message, require_completed

_NOTES = " ".join(f"Note {number}: box {number} holds {number * 7} packets of tea." for number in range(200))
_HISTORY = [
    message(f"Remember these notes. {_NOTES}"),
    {"type": "message", "role": "assistant", "content": "I shall remember them."},
]
_QUESTION = "Reply with one word: hello."


def _compaction_of(items: list[Json]) -> Json:
    found = [item for item in items if item["type"] == "compaction"]
    require(len(found) == 1, "one compaction item", [item["type"] for item in items])
    check_item_keys(found[0])
    require(found[0]["encrypted_content"], "a value of `encrypted_content`", found[0])
    return found[0]


class CompactionChecks(EndpointChecks):
    """The endpoint, `context_management`, and the trigger item."""

    area = "compaction"

    @Once
    def compacted(self) -> Json:
        """The answer of the endpoint."""
        body = {"model": self.target.model, "input": _HISTORY}
        return supported(self.client.post("/responses/compact", body), "POST /responses/compact").ok()

    @behaviour
    def endpoint(self) -> None:
        """`POST /responses/compact` returns the next window, which ends with a compaction item."""
        found = self.compacted
        require_equal(found.get("object"), "response.compaction", "`object`")
        require("usage" in found and "created_at" in found, "`usage` and `created_at`", sorted(found))
        _compaction_of(found["output"])
        require_equal(found["output"][-1]["type"], "compaction", "the type of the last item")

    @behaviour
    def continued(self) -> None:
        """The window, sent back with a new message, is answered."""
        window = [*self.compacted["output"], message(_QUESTION)]
        response = self.target.create(self.target.request(window, store=False)).ok()
        check_response_keys(response)
        require_completed(response)

    @behaviour
    def management(self) -> None:
        """`context_management` compacts inside a response whose history is over the threshold."""
        rule = [{"type": "compaction", "compact_threshold": 1000}]
        body = self.target.request([*_HISTORY, message(_QUESTION)], context_management=rule, stream=True)
        events = self.target.create(body).events()
        check_sequence(events)
        check_grammar(events)
        _compaction_of(events[-1]["response"]["output"])

    @behaviour
    def trigger(self) -> None:
        """A compaction_trigger makes a response of one compaction item."""
        body = self.target.request([*_HISTORY, {"type": "compaction_trigger"}])
        response = self.target.create(body).ok()
        check_response_keys(response)
        require_equal([item["type"] for item in response["output"]], ["compaction"], "the items of the response")
        _compaction_of(response["output"])

    @behaviour
    def trigger_stream(self) -> None:
        """The same, streamed."""
        body = self.target.request([*_HISTORY, {"type": "compaction_trigger"}], stream=True)
        events = self.target.create(body).events()
        check_sequence(events)
        check_grammar(events)
        _compaction_of(events[-1]["response"]["output"])

    @behaviour
    def refused(self) -> None:
        """An item whose content was changed is a 400."""
        item = _compaction_of(self.compacted["output"])
        sealed = item["encrypted_content"]
        at = len(sealed) // 2
        changed = f"{sealed[:at]}{'A' if sealed[at] != 'A' else 'B'}{sealed[at + 1 :]}"
        body = self.target.request([{**item, "encrypted_content": changed}, message(_QUESTION)])
        error = self.target.create(body).error(400)
        require_equal(error["code"], "invalid_encrypted_content", "`code` of the error")


class InputTokenChecks(EndpointChecks):
    """Token counts of requests."""

    area = "input_tokens"

    @behaviour
    def counted(self) -> None:
        """A request is counted."""
        require(self._count(_QUESTION) > 0, "a positive number of tokens")

    @behaviour
    def grows(self) -> None:
        """A longer input, and a declared tool, have more tokens."""
        short = self._count(_QUESTION)
        require(self._count(_QUESTION * 50) > short, f"more than {short} tokens of a longer input")
        tool: Json = {"type": "function", "name": "f", "description": _NOTES[:500], "parameters": {}, "strict": False}
        require(self._count(_QUESTION, tools=[tool]) > short, f"more than {short} tokens with a tool")

    @behaviour
    def refused(self) -> None:
        """An unknown previous response is a 400 or a 404."""
        _ = self._count(_QUESTION)
        body = {"model": self.target.model, "input": _QUESTION, "previous_response_id": "resp_conformance_unknown"}
        self.client.post("/responses/input_tokens", body).error(400, 404)

    def _count(self, text: str, **more: object) -> int:
        body = {"model": self.target.model, "input": text, **more}
        reply = supported(self.client.post("/responses/input_tokens", body), "POST /responses/input_tokens")
        counted = reply.ok()
        require_equal(counted.get("object"), "response.input_tokens", "`object`")
        require(isinstance(counted.get("input_tokens"), int), "`input_tokens` is a number", counted)
        return counted["input_tokens"]
