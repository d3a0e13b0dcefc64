"""Fake Responses API with compaction: opens and seals compaction items, counts tokens, and refuses unpaired calls.

A compaction item contains everything that it replaced, as text, with long runs of the letter x shortened. The model is
a function from the text of the opened context to the output items of a response.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from fake_responses_api import FakeResponse, FakeResponsesApi, RecordedRequest, error, response

BYTES_PER_TOKEN = 4

Item = dict[str, Any]
FakeModel = Callable[[str, list[Item]], list[Item]]


def unpaired(items: list[Item]) -> list[str]:
    """The ids of calls without output and of outputs without call."""
    calls: list[str] = []
    strays: list[str] = []
    for item in items:
        kind = item.get("type", "message")
        if kind.endswith("_call") and "call_id" in item:
            calls.append(item["call_id"])
        elif kind.endswith("_output"):
            if item["call_id"] in calls:
                calls.remove(item["call_id"])
            else:
                strays.append(item["call_id"])
    return calls + strays


def tokens(*values: Any) -> int:
    return sum(len(json.dumps(value)) for value in values) // BYTES_PER_TOKEN


class FakeCompactionApi(FakeResponsesApi):
    """Attributes change what the server supports and how it fails."""

    def __init__(self, model: FakeModel) -> None:
        super().__init__()
        self.model = model
        self.key = "key-1"
        self.next_key: str | None = None  # replaces `key` after the response
        self.context_management: str = "supported"  # or "refused", "ignored"
        self.place = 0  # of the compaction item in the output of a response
        self.endpoint_status = 200
        self.takes_store = True
        self.compact_failures: list[FakeResponse] = []
        self.model_window: int | None = None
        self.unpaired: list[str] = []
        self.largest = 0
        self._ids = count(1)
        self.routes |= {
            "POST /responses": self._create,
            "POST /responses/compact": self._compact,
            "POST /responses/input_tokens": self._count,
        }

    @property
    def compactions(self) -> list[Any]:
        """The bodies of the requests to the compaction endpoint, in order."""
        return [one.body for one in self.requests if one.path.endswith("/compact")]

    @property
    def order(self) -> list[str]:
        """The last part of the path of each request."""
        return [one.path.rpartition("/")[2] for one in self.requests]

    def seal(self, items: list[Item]) -> Item:
        number = next(self._ids)
        sealed = base64.b64encode(
            json.dumps([self.key, [re.sub("x{50,}", "x", text) for text in self.read(items)]]).encode()
        ).decode()
        return {"id": f"cmp_{number}", "type": "compaction", "encrypted_content": sealed}

    def read(self, items: list[Item]) -> list[str]:
        """The context as the model sees it, one text for each item, compaction items opened."""
        texts: list[str] = []
        for item in items:
            if item.get("type") == "compaction":
                key, opened = json.loads(base64.b64decode(item["encrypted_content"]))
                if key != self.key:
                    raise PermissionError(item.get("id"))
                texts += opened
            elif item.get("type") == "reasoning":
                if item.get("encrypted_content") not in (None, self.key):
                    raise PermissionError(item.get("id"))
            else:
                texts.append(json.dumps(item))
        return texts

    def _check(self, items: list[Item]) -> FakeResponse | None:
        self.unpaired += unpaired(items)
        self.largest = max(self.largest, tokens(items))
        try:
            self.read(items)
        except PermissionError as refused:
            what = f"The encrypted content for item {refused} could not be verified."
            return error(400, what, code="invalid_encrypted_content")
        if self.unpaired:
            return error(400, f"No tool output found for {self.unpaired[0]}.", param="input")
        if self.model_window is not None and tokens(items) > self.model_window:
            return error(400, "Your input exceeds the context window.", code="context_length_exceeded")
        return None

    def _create(self, request: RecordedRequest) -> FakeResponse:
        body, items = request.body, request.body["input"]
        if "context_management" in body and self.context_management == "refused":
            return error(400, "Unknown parameter: 'context_management'.", param="context_management")
        if (refused := self._check(items)) is not None:
            return refused
        output = self.model("\n".join(self.read(items)), items)
        used = tokens(items)
        if "context_management" in body and self.context_management == "supported":
            (threshold,) = [one["compact_threshold"] for one in body["context_management"]]
            if used > threshold:
                before, after = output[: self.place], output[self.place :]
                output = [*before, self.seal([*items, *before]), *after]
        usage = {"input_tokens": used, "output_tokens": tokens(output), "total_tokens": used + tokens(output)}
        self.key, self.next_key = self.next_key or self.key, None
        return FakeResponse(response(*output, usage=usage))

    def _compact(self, request: RecordedRequest) -> FakeResponse:
        body, items = request.body, request.body["input"]
        if self.endpoint_status != 200:
            return error(self.endpoint_status, "there is no such endpoint")
        if self.compact_failures:
            return self.compact_failures.pop(0)
        if "store" in body and not self.takes_store:
            return error(400, "Unknown parameter: 'store'.", param="store", code="unknown_parameter")
        if (refused := self._check(items)) is not None:
            return refused
        users = [item for item in items if item.get("role") == "user"]
        rest = [item for item in items if item.get("role") != "user"]
        output = [*users, self.seal(rest)]
        usage = {"input_tokens": tokens(items), "output_tokens": 7, "total_tokens": tokens(items) + 7}
        return FakeResponse(
            {"id": "resp_c", "object": "response.compaction", "created_at": 1, "output": output, "usage": usage}
        )

    def _count(self, request: RecordedRequest) -> FakeResponse:
        return FakeResponse({"object": "response.input_tokens", "input_tokens": tokens(request.body["input"])})


@contextmanager
def compaction_api(model: FakeModel) -> Iterator[FakeCompactionApi]:
    """Run a fake Responses API with compaction."""
    api = FakeCompactionApi(model)
    try:
        yield api
    finally:
        api.close()
