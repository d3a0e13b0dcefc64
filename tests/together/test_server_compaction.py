"""Compaction through a server process: the three forms, their objects and events, counts, and failed summaries."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fixtures_compaction_server import (
    FUNCTION,
    MANAGED,
    SCRIPT,
    SEARCH,
    TRIGGER,
    Api,
    assistant,
    compaction_of,
    compaction_server,
    history,
    kinds,
    summary,
    text_of,
    types,
    user,
)
from fixtures_server import run_server
from stream_grammar import read_frames
from waiting import wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with compaction_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def api(server):
    api = Api(server, server.keys["us"])
    with api.http:
        yield api


# ── form A: the endpoint ─────────────────────────────────────────────────────────────────────────────────────────────


def test_the_endpoint_returns_the_users_messages_and_one_compaction_item(api):
    given = history()
    compacted = api.compact(input=given, instructions="Be exact.")

    assert set(compacted) == {"id", "object", "created_at", "output", "usage", "antwort:compaction"}
    assert compacted["object"] == "response.compaction"
    assert compacted["id"].startswith("resp_")
    *messages, item = compacted["output"]
    assert set(item) == {"id", "type", "encrypted_content"}
    assert (item["type"], item["id"][:4]) == ("compaction", "cmp_")
    questions = [one["content"] for one in given if one["role"] == "user"]
    assert [one["content"] for one in messages] == [[{"type": "input_text", "text": text}] for text in questions]
    assert {one["role"] for one in messages} == {"user"}
    assert compacted["usage"]["input_tokens"] > 1000
    note = compacted["antwort:compaction"]
    assert (note["method"], note["reason"]) == ("summary", None)
    assert note["tokens_after"] < note["tokens_before"]
    assert api.http.get(f"/v1/responses/{compacted['id']}").status_code == 404
    chained = api.refused(input="x", previous_response_id=compacted["id"])
    assert chained["code"] == "previous_response_not_found"


def test_the_compacted_window_is_the_next_input_as_it_is(api):
    window = api.compact(input=history())["output"]
    response = api.create(input=[*window, user("recall")], store=False)

    assert text_of(response) == "FACT-1\nFACT-2"
    again = api.compact(input=[*window, user("FACT-3 is new."), assistant("FACT-4 too.")])["output"]
    assert text_of(api.create(input=[*again, user("recall")])).split() == ["FACT-1", "FACT-3", "FACT-2", "FACT-4"]
    assert text_of(api.create(input=[again[-1], user("recall")])).split() == ["FACT-1", "FACT-3", "FACT-2", "FACT-4"]


def test_the_endpoint_compacts_a_stored_chain_and_a_text(api):
    stored = api.create(input=history())
    window = api.compact(previous_response_id=stored["id"], input=[user("FACT-9")])["output"]

    assert text_of(api.create(input=[*window, user("recall")])).split() == ["FACT-1", "FACT-2", "FACT-9"]
    [message, item] = api.compact(input="FACT-8")["output"]
    assert message["content"] == [{"type": "input_text", "text": "FACT-8"}]
    assert text_of(api.create(input=[item, user("recall")])) == "FACT-8"


def test_new_instructions_before_the_item_are_seen(api):
    old, unchanged, new = ({"role": "developer", "content": f"FACT-{number}"} for number in (20, 21, 30))
    item = api.compact(input=[old, unchanged, *history()])["output"][-1]

    def recall(*before: dict[str, Any]) -> list[str]:
        return text_of(api.create(input=[*before, item, user("recall")])).split()

    assert recall() == ["FACT-20", "FACT-21", "FACT-1", "FACT-2"]
    assert recall(new) == ["FACT-30", "FACT-20", "FACT-21", "FACT-1", "FACT-2"]
    # Instructions that are sent again replace those of the window; the summary of this model still has the old ones.
    assert recall(new, unchanged) == ["FACT-30", "FACT-21", "FACT-1", "FACT-20", "FACT-2"]


def test_messages_that_an_earlier_compaction_replaced_do_not_come_back(api):
    kept = history("FACT-40", turns=40, words=1000)
    kept.append(compaction_of(api.create(input=[*kept, TRIGGER], store=False)))
    first = api.post("responses/input_tokens", input=kept)["input_tokens"]
    kept += [user("more " * 400), assistant("yes")]
    kept.append(compaction_of(api.create(input=[*kept, TRIGGER], store=False)))
    second = api.post("responses/input_tokens", input=kept)["input_tokens"]

    assert second < first + 1000


def test_an_empty_history_can_be_compacted(api):
    item = compaction_of(api.create(input=[TRIGGER]))

    assert text_of(api.create(input=[item, user("recall FACT-1")])) == "FACT-1"


# ── form B: context_management ───────────────────────────────────────────────────────────────────────────────────────


def test_an_answer_above_the_threshold_is_followed_by_a_compaction_item(api):
    given = [*history(turns=8), user("Hello?")]
    below = api.post("responses/input_tokens", input=given)["input_tokens"]
    managed = [{"type": "compaction", "compact_threshold": below + 1}]
    events = api.stream(input=given, context_management=managed)

    assert kinds(events)[:2] == ["created", "in_progress"]
    assert kinds(events)[-5:] == [
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "output_item.done",
        "completed",
    ]
    final = events[-1]["response"]
    assert types(final) == ["message", "compaction"]
    added, done = events[-3], events[-2]
    assert (added["output_index"], done["output_index"]) == (1, 1)
    assert added["item"]["id"] == done["item"]["id"] == final["output"][1]["id"]
    assert done["item"]["encrypted_content"] == final["output"][1]["encrypted_content"]
    assert "compaction.compacting" not in kinds(events)
    assert final["antwort:compaction"]["method"] == "summary"
    assert final["usage"]["input_tokens"] > below


def test_a_history_above_the_threshold_is_compacted_before_the_answer(api):
    response = api.create(input=[*history(), user("recall")], context_management=MANAGED)

    assert types(response) == ["compaction", "message"]
    assert text_of(response).split() == ["FACT-1", "FACT-2"]
    events = api.stream(input=[*history(), user("recall")], context_management=MANAGED)
    assert types(events[-1]["response"]) == ["compaction", "message"]


def test_below_the_threshold_nothing_is_compacted(api):
    response = api.create(input="Hello", context_management=MANAGED)

    assert types(response) == ["message"]
    assert "antwort:compaction" not in response


def test_a_compaction_in_the_middle_of_a_response_with_hosted_calls(api):
    request = {"input": "search now", "tools": [SEARCH], "context_management": MANAGED}
    events = api.stream(**request)
    final = events[-1]["response"]

    assert types(final) == ["file_search_call", "file_search_call", "compaction", "message"]
    assert types(api.create(**request)) == types(final)
    following = api.create(input="recall", previous_response_id=final["id"])
    assert set(text_of(following).split()) == {"FACT-5", "FACT-6"}


def test_open_client_calls_get_their_outputs_after_a_compaction(api):
    request = {"tools": [FUNCTION], "context_management": MANAGED}
    given = [*history(turns=1, words=10), user("act")]
    outputs = [
        {"type": "function_call_output", "call_id": "call_b", "output": "found b"},
        {"type": "function_call_output", "call_id": "call_a", "output": "found a"},
    ]
    response = api.create(input=given, **request)

    assert types(response) == ["message", "function_call", "function_call", "compaction"]
    chained = api.create(input=outputs, previous_response_id=response["id"], **request)
    stateless = api.create(input=[compaction_of(response), *outputs], store=False, **request)
    kept = api.create(input=[*given, *response["output"], *outputs], store=False, **request)
    for answer in (chained, stateless, kept):
        assert text_of(answer).startswith("It says: found")
        assert "FACT-2" in text_of(answer)
    one = api.create(input=outputs[:1], previous_response_id=response["id"], **request)
    assert one["status"] == "completed"
    lost = {**outputs[0], "call_id": "call_lost"}
    assert "call_lost" in api.refused(input=[lost], previous_response_id=response["id"])["message"]


def test_a_model_that_finds_the_history_too_long_gets_it_compacted(api):
    given = [*history("TOO-LONG"), user("recall")]
    managed = [{"type": "compaction", "compact_threshold": 100_000}]
    response = api.create(input=given, context_management=managed)

    assert types(response) == ["compaction", "message"]
    assert text_of(response).split() == ["FACT-1", "FACT-2"]
    assert api.http.post("/v1/responses", json={"input": given}).status_code == 400


def test_a_model_that_fails_after_a_compaction_has_an_error_status(api):
    request = {"input": [*history(), user("busy")], "context_management": MANAGED}
    answer = api.http.post("/v1/responses", json=request)
    [failed] = [event for event in api.stream(**request) if event["type"] == "response.failed"]

    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert types(failed["response"]) == ["compaction"]


# ── form C: a trigger ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_trigger_gives_exactly_one_compaction_item(api):
    events = api.stream(input=[*history(), TRIGGER])

    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "compaction.compacting",
        "output_item.done",
        "completed",
    ]
    final = events[-1]["response"]
    [item] = final["output"]
    assert set(item) == {"id", "type", "encrypted_content"}
    assert events[4]["item"] == item
    assert (events[3]["item_id"], events[3]["output_index"]) == (item["id"], 0)
    assert {event["item"]["id"] for event in events if "item" in event} == {item["id"]}
    assert types(api.create(input=[*history(), TRIGGER])) == ["compaction"]


def test_a_trigger_after_a_stored_response_continues_it(api):
    first = api.create(input=history())
    second = api.create(input=[TRIGGER], previous_response_id=first["id"])
    third = api.create(input="recall", previous_response_id=second["id"])

    assert types(second) == ["compaction"]
    assert text_of(third).split() == ["FACT-1", "FACT-2"]


def test_a_trigger_compacts_a_conversation_and_is_not_added_to_it(api):
    conversation = api.post("conversations", items=history()[:20])["id"]
    api.create(input=[TRIGGER], conversation=conversation)
    listed = [item["type"] for item in api.get(f"conversations/{conversation}/items?order=asc&limit=100")["data"]]

    assert listed[-1] == "compaction"
    assert "compaction_trigger" not in listed
    assert "FACT-1" in text_of(api.create(input="recall", conversation=conversation))


def test_a_coding_agent_without_storage_sends_its_window_back(api):
    item = compaction_of(api.create(input=[*history(), TRIGGER], store=False))
    without_id = {name: value for name, value in item.items() if name != "id"}
    for sent in (item, without_id):
        response = api.create(input=[user("question 11"), sent, user("recall")], store=False)
        assert text_of(response).split() == ["FACT-1", "FACT-2"]


# ── stored objects and counting ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", ["managed", "trigger"])
def test_stored_compactions_can_be_retrieved_listed_and_deleted(api, form):
    given = [*history(), TRIGGER if form == "trigger" else user("recall")]
    response = api.create(input=given, **({"context_management": MANAGED} if form == "managed" else {}))

    assert api.get(f"responses/{response['id']}") == response
    listed = api.get(f"responses/{response['id']}/input_items?order=asc&limit=100")["data"]
    assert [item["type"] for item in listed] == [item["type"] for item in given]
    assert all(item["id"] for item in listed)
    deleted = api.http.delete(f"/v1/responses/{response['id']}").json()
    assert deleted == {"id": response["id"], "object": "response", "deleted": True}
    assert api.http.get(f"/v1/responses/{response['id']}").status_code == 404


def test_input_tokens_of_a_compacted_history_are_those_of_the_next_request(api):
    item = compaction_of(api.create(input=[*history(), TRIGGER]))
    stored = api.create(input=[*history(), user("recall")], context_management=MANAGED)
    whole = api.post("responses/input_tokens", input=[*history(), user("Hello")])["input_tokens"]
    for given in ({"input": [item, user("Hello")]}, {"input": "Hello", "previous_response_id": stored["id"]}):
        counted = api.post("responses/input_tokens", **given)
        assert counted["object"] == "response.input_tokens"
        assert counted["input_tokens"] == api.create(**given)["usage"]["input_tokens"]
        assert counted["input_tokens"] < whole


def test_attached_files_of_retained_messages_are_shown_after_a_compaction(api):
    uploaded = api.http.post(
        "/v1/files", data={"purpose": "user_data"}, files={"file": ("a.txt", b"a short note", "text/plain")}
    ).json()["id"]
    parts = [{"type": "input_text", "text": "Read it."}, {"type": "input_file", "file_id": uploaded}]
    given = [*history(), {"role": "user", "content": parts}]
    response = api.create(input=given, context_management=MANAGED)
    item = compaction_of(api.create(input=[TRIGGER], previous_response_id=response["id"]))

    assert types(response) == ["compaction", "message"]
    with_file = api.post("responses/input_tokens", input=[item, user("Hello")])["input_tokens"]
    api.http.delete(f"/v1/files/{uploaded}")
    without = api.post("responses/input_tokens", input=[item, user("Hello")])["input_tokens"]
    assert with_file != without  # a deleted file has a placeholder


def test_a_conversation_crosses_compactions(api):
    conversation = api.post("conversations")["id"]
    api.create(input=history(), conversation=conversation)
    assert types(api.create(input=[TRIGGER], conversation=conversation)) == ["compaction"]
    api.create(input=[user("FACT-3"), assistant("FACT-4"), *history()[2:], user("?")], conversation=conversation)
    managed = api.create(input="Hello", conversation=conversation, context_management=MANAGED)

    assert types(managed) == ["compaction", "message"]
    assert set(text_of(api.create(input="recall", conversation=conversation)).split()) == {
        "FACT-1",
        "FACT-2",
        "FACT-3",
        "FACT-4",
    }


# ── background and cancellation ──────────────────────────────────────────────────────────────────────────────────────


def test_a_background_response_is_compacted_and_can_be_followed(api):
    request = {"input": [*history(), user("recall")], "context_management": MANAGED, "background": True}
    events = api.stream(**request)
    final = events[-1]["response"]

    assert types(final) == ["compaction", "message"]
    followed = read_frames(api.http.get(f"/v1/responses/{final['id']}?stream=true").content)
    assert [event["type"] for event in followed] == [event["type"] for event in events]
    queued = api.create(**request)
    assert queued["status"] == "queued"
    ended = wait_until(lambda: _ended(api, queued["id"]))
    assert types(ended) == ["compaction", "message"]


def _ended(api: Api, identifier: str) -> Any:
    response = api.get(f"responses/{identifier}")
    return response if response["status"] not in ("queued", "in_progress") else None


@pytest.mark.parametrize("form", ["managed", "trigger"])
def test_cancelling_during_the_summary_leaves_no_item(api, form):
    given = [*history("SLOW-SUMMARY"), TRIGGER if form == "trigger" else user("Hello")]
    managed = {"context_management": MANAGED} if form == "managed" else {}
    started = api.create(input=given, background=True, **managed)
    path = f"responses/{started['id']}"
    wait_until(lambda: api.get(path)["status"] == "in_progress")
    cancelled = api.post(f"{path}/cancel")

    assert (cancelled["status"], cancelled["output"]) == ("cancelled", [])
    assert api.get(path)["output"] == []
    assert "antwort:compaction" not in cancelled


def test_a_client_that_disconnects_during_the_summary_leaves_no_item(api):
    request = {"input": [*history("SLOW-SUMMARY"), TRIGGER], "stream": True}
    with api.http.stream("POST", "/v1/responses", json=request) as answer:
        lines = answer.iter_lines()
        first = next(line for line in lines if line.startswith("data: "))
        identifier = first.split('"id":"')[1].split('"')[0]
        next(line for line in lines if "compaction.compacting" in line)
    ended = wait_until(lambda: _ended(api, identifier))

    assert (ended["status"], ended["output"]) == ("cancelled", [])


# ── summaries that fail ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "marker, reason",
    [
        ("EMPTY-SUMMARY", "The model wrote an empty summary."),
        ("REFUSED-SUMMARY", "The model refused to write a summary."),
        ("LONG-SUMMARY", "The model wrote a summary that is too long."),
        ("BROKEN-SUMMARY", "The model failed to write a summary: It broke."),
    ],
)
def test_an_extract_replaces_a_summary_that_cannot_be_used(api, marker, reason):
    given = [*history(marker, turns=3, words=3), assistant("FACT-3 at last.")]
    compacted = api.compact(input=given)
    triggered = api.create(input=[*given, TRIGGER])
    streamed = api.stream(input=[*given, TRIGGER])[-1]["response"]

    for response in (compacted, triggered, streamed):
        note = response["antwort:compaction"]
        assert (note["method"], note["reason"]) == ("extract", reason)
        found = text_of(api.create(input=[response["output"][-1], user("recall")])).split()
        assert {"FACT-1", "FACT-2", "FACT-3"} == set(found)


def test_another_model_can_write_the_summaries(tmp_path):
    writer = {"answers": [summary(None, {"text": "Written by the other model: FACT-99"})]}
    other = {"answers": [summary(None, {"fault": {}}), *SCRIPT["answers"]]}
    models = {
        "scripted": {"kind": "scripted", "script": "script.yaml"},
        "writer": {"kind": "scripted", "script": "writer.yaml"},
    }
    (tmp_path / "writer.yaml").write_text(json.dumps(writer))
    config = {"models": models, "compaction": {"model": "writer"}}
    with run_server(tmp_path, config, script=other) as server:
        api = Api(server)
        with api.http:
            response = api.create(input=[*history(), TRIGGER])
            managed = api.create(input=[*history(), user("recall")], context_management=MANAGED)
            found = text_of(api.create(input="recall", previous_response_id=response["id"]))

    assert response["model"] == "scripted"
    assert response["antwort:compaction"]["method"] == "summary"
    assert "FACT-99" in found
    assert "FACT-99" in text_of(managed)


def test_compactions_are_counted_by_method(api):
    def counted(method: str) -> float:
        lines = api.http.get("/metrics").text.splitlines()
        name = f'antwort_compactions_total{{method="{method}"}} '
        return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))

    summaries, extracts = counted("summary"), counted("extract")
    api.compact(input=history())
    api.create(input=[*history(), TRIGGER])
    api.stream(input=[*history("EMPTY-SUMMARY"), TRIGGER])

    # The last one is counted when the stream is closed, which the client does not wait for.
    wait_until(lambda: (counted("summary"), counted("extract")) == (summaries + 2, extracts + 1))
