"""Event streams of the server process for generated model output: every stream has a valid order of events.

Hypothesis generates the model output; a real upstream sends it in chunks of any size. Streaming and blocking requests
must have the same result.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any, Union

import msgspec
import pytest
from fake_upstream import CannedReply, running_upstream, sse_frame
from fixtures_server import ROOT, run_server
from fold import fold
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stream_grammar import check_stream, read_frames

from antwort.api.events import EVENTS

TOOLS = [
    {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}},
    {"type": "custom", "name": "shout"},
    {"type": "file_search", "vector_store_ids": ["vs_1"]},
]

decode = msgspec.json.Decoder(Union[tuple(EVENTS)]).decode  # noqa: UP007 - a union built at run time
KNOWN = {str(event.__struct_config__.tag) for event in EVENTS}


@pytest.fixture(scope="module")
def upstream():
    with running_upstream() as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory, upstream):
    model = {"kind": "chat_completions", "base_url": upstream.url, "attempts": 1}
    program = ROOT / "tests" / "support" / "fake_echo_provider.py"
    with run_server(tmp_path_factory.mktemp("server"), {"models": {"any": model}}, program=program) as running:
        yield running


@pytest.fixture(scope="module")
def http(server):
    with server.http() as http:
        yield http


# ── generated model output ───────────────────────────────────────────────────────────────────────────────────────────


def split(text: str, positions: list[int]) -> list[str]:
    edges = [0, *sorted({position % (len(text) + 1) for position in positions}), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


positions = st.lists(st.integers(0, 1000), max_size=4)
words = st.text(st.characters(codec="utf-8"), max_size=12)


def text_deltas(field: str):
    return st.builds(lambda text, at: [{field: part} for part in split(text, at)], words, positions)


def arguments(name: str):
    if name == "shout":
        return words.map(lambda text: json.dumps({"input": text}))
    queries = st.sampled_from(["apples", "raise", "end"]) | words
    return queries.map(lambda query: json.dumps({"query": query})) | st.sampled_from(["", "{", '{"query": 3}', "[]"])


@st.composite
def a_call(draw, index: int):
    """A tool call in fragments: the name first, an id in the first fragment or none."""
    name = draw(st.sampled_from(["add", "shout", "file_search", "unknown"]))
    identifier = draw(st.sampled_from([{}, {"id": f"call_{index}"}]))
    fragments = split(draw(arguments(name)), draw(positions))
    start = {"index": index, "type": "function", **identifier, "function": {"name": name, "arguments": ""}}
    return [
        {"tool_calls": [start]},
        *({"tool_calls": [{"index": index, "function": {"arguments": part}}]} for part in fragments),
    ]


@st.composite
def deltas(draw):
    """Text parts, then tool calls with interleaved fragments."""
    texts = draw(
        st.lists(text_deltas("content") | text_deltas("refusal") | text_deltas("reasoning_content"), max_size=4)
    )
    calls = [draw(a_call(index)) for index in range(draw(st.integers(0, 3)))]
    mixed = []
    while any(calls):
        at = draw(st.integers(0, len(calls) - 1))
        if calls[at]:
            mixed.append(calls[at].pop(0))
        else:
            calls.pop(at)
    return [delta for part in texts for delta in part] + mixed


@st.composite
def replies(draw):
    """One reply of a chat server, in chunks of any size."""
    generated = draw(deltas())
    calls = any("tool_calls" in delta for delta in generated)
    reason = draw(st.sampled_from(["tool_calls" if calls else "stop"] * 3 + ["length", "content_filter"]))
    usage = {"prompt_tokens": draw(st.integers(0, 99)), "completion_tokens": draw(st.integers(0, 99))}
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in generated]
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage}
    sent = b"".join([*map(sse_frame, [*chunks, last]), sse_frame("[DONE]")])
    edges = sorted({0, len(sent), *draw(st.lists(st.integers(0, len(sent)), max_size=12))})
    return CannedReply([sent[start:end] for start, end in pairwise(edges)])


# ── results ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def normalized(response: dict[str, Any]) -> dict[str, Any]:
    """A response without times and generated ids, which differ between two equal responses."""
    text = json.dumps({**response, "created_at": 0, "completed_at": None, "background": False})
    seen: dict[str, str] = {}
    named = re.sub(
        r"\b(resp|msg|rs|fc|ctc|fs|call)_[0-9a-f]{32}\b",
        lambda found: seen.setdefault(found[0], f"{found[1]}_{len(seen)}"),
        text,
    )
    return json.loads(named)


def folded(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The result of `fold` over the sent events."""
    known = [decode(json.dumps(event)) for event in events if event["type"] in KNOWN]
    return msgspec.to_builtins(fold(known))


END = CannedReply(
    [sse_frame({"choices": [{"delta": {"content": "The end."}, "finish_reason": "stop"}]}), sse_frame("[DONE]")]
)
REQUEST = {"input": "go", "tools": TOOLS}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(replies(), min_size=1, max_size=3), st.none() | st.integers(1, 2))
def test_a_stream_is_valid_and_equals_the_blocking_response(http, upstream, generated_replies, max_tool_calls):
    request = {**REQUEST, "max_tool_calls": max_tool_calls}
    upstream.set_replies(*generated_replies, END)
    streamed = http.post("/v1/responses", json={**request, "stream": True})
    events = read_frames(streamed.content)
    check_stream(events)
    upstream.set_replies(*generated_replies, END)
    blocking = http.post("/v1/responses", json=request)
    final = events[-1]["response"]

    assert normalized(folded(events)) == normalized(final)
    assert http.get(f"/v1/responses/{final['id']}").json() == final
    assert (blocking.status_code, normalized(blocking.json())) == (200, normalized(final))


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(replies(), min_size=1, max_size=2), st.integers(-1, 60))
def test_a_stream_can_be_resumed_at_any_sequence_number(http, upstream, generated_replies, last_seen):
    upstream.set_replies(*generated_replies, END)
    streamed = http.post("/v1/responses", json={**REQUEST, "stream": True, "background": True})
    events = read_frames(streamed.content)
    check_stream(events, background=True)
    path = f"/v1/responses/{events[0]['response']['id']}"
    resumed = http.get(path, params={"stream": True, "starting_after": last_seen})

    assert (read_frames(resumed.content) if resumed.content else []) == events[last_seen + 1 :]
    assert http.get(path).json() == events[-1]["response"]


# ── calls of chat models ─────────────────────────────────────────────────────────────────────────────────────────────


def stream_of_calls(http, upstream, *fragments: tuple[int, str, str]) -> list[dict[str, Any]]:
    """The events of a reply with these fragments of calls: index, name (of the first fragment), arguments."""
    deltas = [
        {"index": index, "function": {"name": name, "arguments": text} if name else {"arguments": text}}
        | ({"id": f"call_{index}", "type": "function"} if name else {})
        for index, name, text in fragments
    ]
    chunks = [sse_frame({"choices": [{"index": 0, "delta": {"tool_calls": [delta]}}]}) for delta in deltas]
    end = sse_frame({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    upstream.set_replies(CannedReply([*chunks, end, sse_frame("[DONE]")]))
    events = read_frames(http.post("/v1/responses", json={**REQUEST, "stream": True}).content)
    check_stream(events)
    return events


def test_free_text_in_braces_is_complete_although_another_call_begins_within_it(http, upstream):
    fragments = [(0, "shout", "{ foo(); }"), (1, "add", '{"n": 1}'), (0, "", " bar();")]
    custom, function = stream_of_calls(http, upstream, *fragments)[-1]["response"]["output"]

    assert (custom["input"], custom["status"]) == ("{ foo(); } bar();", "completed")
    assert function["arguments"] == '{"n": 1}'


def test_a_function_call_without_parameters_has_arguments_that_are_json(http, upstream):
    events = stream_of_calls(http, upstream, (0, "add", ""), (1, "shout", ""))
    sent = [event for event in events if event["type"].startswith("response.function_call_arguments.")]
    function, custom = events[-1]["response"]["output"]

    assert [event.get("delta", event.get("arguments")) for event in sent] == ["{}", "{}"]
    assert (function["arguments"], custom["input"]) == ("{}", "")
