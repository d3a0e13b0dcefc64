"""Server for tests of compaction: a scripted model that copies facts, and plain HTTP requests of one tenant.

The text of a history says how the summary of it fails, as in `SLOW-SUMMARY`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fixtures_server import ROOT, Server, create_key, run_server
from stream_grammar import check_stream, read_frames

IS_SUMMARY = "/^Summarize the conversation above/"
FACTS = "<<find /FACT-[0-9]+/>>"
SEARCH = {"type": "file_search", "vector_store_ids": ["vs_1"]}
FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False}
MANAGED = [{"type": "compaction", "compact_threshold": 1000}]
TRIGGER = {"type": "compaction_trigger"}


def summary(marker: str | None, *reply: dict[str, Any]) -> dict[str, Any]:
    return {"when": {"text": IS_SUMMARY, **({"any": marker} if marker else {})}, "reply": list(reply)}


SCRIPT = {
    "fragment": 40,
    "answers": [
        summary("EMPTY-SUMMARY", {"text": ""}),
        summary("REFUSED-SUMMARY", {"refusal": "I will not."}),
        summary("LONG-SUMMARY", {"text": "word " * 20_000}),
        summary("BROKEN-SUMMARY", {"text": "half"}, {"delay": 0.05}, {"fault": {"message": "It broke."}}),
        summary("SLOW-SUMMARY", {"text": "half"}, {"delay": 600}),
        summary(None, {"text": f"Facts: {FACTS}"}),
        {"when": {"any": "TOO-LONG"}, "reply": [{"fault": {"code": "context_length_exceeded", "status": 400}}]},
        {"when": {"text": "busy"}, "reply": [{"fault": {"code": "rate_limit_exceeded", "status": 429}}]},
        {"when": {"text": "recall"}, "reply": [{"text": FACTS}]},
        {"when": {"text": "think"}, "reply": [{"reasoning": "FACT-77, hidden."}, {"text": "I thought."}]},
        {"when": {"text": "act", "output": "found"}, "reply": [{"text": "It says: <<output>> " + FACTS}]},
        {
            "when": {"text": "act", "turn": 1},
            "reply": [
                {"text": "I look. " + "so " * 1500},
                {"call": {"name": "look", "id": "call_a", "arguments": {"a": 1}}},
                {"call": {"name": "look", "id": "call_b", "arguments": {"b": 2}}},
            ],
        },
        {
            "when": {"tool": "file_search", "any": "/search now(?![\\s\\S]*FACT-5)/"},
            "reply": [
                {"call": {"name": "file_search", "arguments": {"query": "FACT-5 " + "x " * 2500}}},
                {"call": {"name": "file_search", "arguments": {"query": "FACT-6"}}},
            ],
        },
        {"reply": [{"text": "Noted."}]},
    ],
}


@contextmanager
def compaction_server(directory: Path) -> Iterator[Server]:
    """A server with a hosted echo tool, and keys of two tenants."""
    tenants = {"us": "us", "second_key": "us", "them": "them"}
    keys = {name: create_key(directory, name, "--tenant", tenant) for name, tenant in tenants.items()}
    program = ROOT / "tests" / "support" / "fake_echo_provider.py"
    with run_server(directory, {"auth": {"keys_file": "keys.json"}}, script=SCRIPT, program=program) as running:
        running.keys = keys
        yield running


class Api:
    """Plain HTTP requests of one tenant."""

    def __init__(self, server: Server, key: str | None = None) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self.http = server.http(headers=headers)

    def post(self, path: str, **body: Any) -> Any:
        """The answer to a request that succeeds."""
        answer = self.http.post(f"/v1/{path}", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def create(self, **body: Any) -> Any:
        return self.post("responses", **body)

    def compact(self, **body: Any) -> Any:
        return self.post("responses/compact", model="scripted", **body)

    def stream(self, **body: Any) -> list[dict[str, Any]]:
        """The events of a streamed response, checked."""
        answer = self.http.post("/v1/responses", json={**body, "stream": True})
        assert answer.status_code == 200, answer.text
        events = read_frames(answer.content)
        check_stream(events, background=bool(body.get("background")))
        return events

    def get(self, path: str) -> Any:
        return self.http.get(f"/v1/{path}").json()

    def refused(self, path: str = "responses", **body: Any) -> dict[str, Any]:
        """The error of a request with status 400."""
        answer = self.http.post(f"/v1/{path}", json=body)
        assert answer.status_code == 400, answer.text
        return answer.json()["error"]


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def history(*markers: str, turns: int = 12, words: int = 100) -> list[dict[str, Any]]:
    """A long conversation with a fact in the first answer. The markers are in an answer, which is not kept."""
    first = [user("FACT-1 is asked."), assistant(" ".join(("FACT-2 is known.", *markers)))]
    rest = ((user(f"question {n} " + "why " * words), assistant(f"answer {n} " + "so " * words)) for n in range(turns))
    return [*first, *(item for turn in rest for item in turn)]


def text_of(response: dict[str, Any]) -> str:
    messages = (item for item in response["output"] if item["type"] == "message")
    return "".join(part.get("text", "") for item in messages for part in item["content"])


def types(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def compaction_of(response: dict[str, Any]) -> dict[str, Any]:
    [item] = [item for item in response["output"] if item["type"] == "compaction"]
    return item
