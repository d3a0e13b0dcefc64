"""The real process and a model that may say anything, cut anywhere: every stream keeps to the wire's order.

What a model says is drawn by hypothesis and played by a real upstream, with its bytes cut
wherever. The same is asked for streamed and blocking, and both have to tell the same.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any, Union

import msgspec
import pytest
from fake_upstream import Play, frame, upstreaming
from fixtures_server import ROOT, run_server
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stream_grammar import check_stream, read_frames

from antwort.api.events import EVENTS
from antwort.engine.fold import fold

TOOLS = [
    {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}},
    {"type": "custom", "name": "shout"},
    {"type": "file_search", "vector_store_ids": ["vs_1"]},
]

decode = msgspec.json.Decoder(Union[tuple(EVENTS)]).decode  # noqa: UP007 - a union that is known only now
KNOWN = {str(event.__struct_config__.tag) for event in EVENTS}


@pytest.fixture(scope="module")
def upstream():
    with upstreaming() as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory, upstream):
    model = {"kind": "chat_completions", "base_url": upstream.url, "attempts": 1}
    program = ROOT / "tests" / "stages" / "fake_echo_provider.py"
    with run_server(tmp_path_factory.mktemp("server"), {"models": {"any": model}}, program=program) as running:
        yield running


@pytest.fixture(scope="module")
def http(server):
    with server.http() as http:
        yield http


# ── what a model may say ─────────────────────────────────────────────────────────────────────────────────────────────


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted({place % (len(text) + 1) for place in places}), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


places = st.lists(st.integers(0, 1000), max_size=4)
words = st.text(st.characters(codec="utf-8"), max_size=12)


def speech(field: str):
    return st.builds(lambda text, at: [{field: part} for part in cut(text, at)], words, places)


def arguments(name: str):
    if name == "shout":
        return words.map(lambda text: json.dumps({"input": text}))
    queries = st.sampled_from(["apples", "raise", "end"]) | words
    return queries.map(lambda query: json.dumps({"query": query})) | st.sampled_from(["", "{", '{"query": 3}', "[]"])


@st.composite
def a_call(draw, index: int):
    """A call, in fragments: the name comes first, the id at once or never."""
    name = draw(st.sampled_from(["add", "shout", "file_search", "unknown"]))
    identifier = draw(st.sampled_from([{}, {"id": f"call_{index}"}]))
    fragments = cut(draw(arguments(name)), draw(places))
    begun = {"index": index, "type": "function", **identifier, "function": {"name": name, "arguments": ""}}
    return [
        {"tool_calls": [begun]},
        *({"tool_calls": [{"index": index, "function": {"arguments": part}}]} for part in fragments),
    ]


@st.composite
def deltas(draw):
    """Speech, then calls, whose fragments may come in turns."""
    said = draw(st.lists(speech("content") | speech("refusal") | speech("reasoning_content"), max_size=4))
    calls = [draw(a_call(index)) for index in range(draw(st.integers(0, 3)))]
    mixed = []
    while any(calls):
        at = draw(st.integers(0, len(calls) - 1))
        if calls[at]:
            mixed.append(calls[at].pop(0))
        else:
            calls.pop(at)
    return [delta for part in said for delta in part] + mixed


@st.composite
def replies(draw):
    """One reply as a chat server streams it, its bytes in pieces of any size."""
    said = draw(deltas())
    calls = any("tool_calls" in delta for delta in said)
    reason = draw(st.sampled_from(["tool_calls" if calls else "stop"] * 3 + ["length", "content_filter"]))
    numbers = {"prompt_tokens": draw(st.integers(0, 99)), "completion_tokens": draw(st.integers(0, 99))}
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in said]
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": numbers}
    sent = b"".join([*map(frame, [*chunks, last]), frame("[DONE]")])
    edges = sorted({0, len(sent), *draw(st.lists(st.integers(0, len(sent)), max_size=12))})
    return Play([sent[start:end] for start, end in pairwise(edges)])


# ── what comes of it ─────────────────────────────────────────────────────────────────────────────────────────────────


def alike(response: dict[str, Any]) -> dict[str, Any]:
    """A response without what differs between two of the same: when it was, and the ids that we make."""
    text = json.dumps({**response, "created_at": 0, "completed_at": None, "background": False})
    seen: dict[str, str] = {}
    named = re.sub(
        r"\b(resp|msg|rs|fc|ctc|fs|call)_[0-9a-f]{32}\b",
        lambda found: seen.setdefault(found[0], f"{found[1]}_{len(seen)}"),
        text,
    )
    return json.loads(named)


def folded(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What our own fold makes of the events as they were sent."""
    known = [decode(json.dumps(event)) for event in events if event["type"] in KNOWN]
    return msgspec.to_builtins(fold(known))


END = Play([frame({"choices": [{"delta": {"content": "The end."}, "finish_reason": "stop"}]}), frame("[DONE]")])
ASKED = {"input": "go", "tools": TOOLS}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(replies(), min_size=1, max_size=3), st.none() | st.integers(1, 2))
def test_a_stream_keeps_to_the_wire_and_tells_what_a_blocking_caller_gets(http, upstream, says, most):
    asked = {**ASKED, "max_tool_calls": most}
    upstream.plays(*says, END)
    streamed = http.post("/v1/responses", json={**asked, "stream": True})
    events = read_frames(streamed.content)
    check_stream(events)
    upstream.plays(*says, END)
    blocking = http.post("/v1/responses", json=asked)
    final = events[-1]["response"]

    assert alike(folded(events)) == alike(final)
    assert http.get(f"/v1/responses/{final['id']}").json() == final
    assert (blocking.status_code, alike(blocking.json())) == (200, alike(final))


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(replies(), min_size=1, max_size=2), st.integers(-1, 60))
def test_a_stream_that_is_resumed_anywhere_goes_on_as_it_was(http, upstream, says, lost):
    upstream.plays(*says, END)
    streamed = http.post("/v1/responses", json={**ASKED, "stream": True, "background": True})
    events = read_frames(streamed.content)
    check_stream(events, background=True)
    path = f"/v1/responses/{events[0]['response']['id']}"
    resumed = http.get(path, params={"stream": True, "starting_after": lost})

    assert (read_frames(resumed.content) if resumed.content else []) == events[lost + 1 :]
    assert http.get(path).json() == events[-1]["response"]
