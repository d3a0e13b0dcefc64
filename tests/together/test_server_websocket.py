"""The WebSocket of /v1/responses through the server process: sequences, continuation, lanes and errors."""

from __future__ import annotations

import json

import pytest
from fixtures_server import run_server, stored_statuses
from fixtures_websocket import error_of, open_websocket, text_of
from waiting import wait_until

NOT_FOUND = (400, "previous_response_not_found", "previous_response_id")
ECHO = "You said: "
UNANSWERED = [{"type": "function_call_output", "call_id": "call_no", "output": "x"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with run_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def websocket(server):
    with open_websocket(server) as opened:
        yield opened


def is_usable(websocket) -> bool:
    return text_of(websocket.respond("still here")) == f"{ECHO}still here"


# ── the SDK ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_sdk_creates_responses_in_sequence_and_continues_them(server):
    texts, previous = [], None
    with server.client().responses.connect() as connection:
        for text in ("one", "two", "three"):
            connection.response.create(model="scripted", input=text, store=False, previous_response_id=previous)
            for event in connection:
                assert event.type != "error", event
                if event.type == "response.completed":
                    previous = event.response.id
                    texts.append(event.response.output_text)
                    break
    assert texts == [f"{ECHO}{text}" for text in ("one", "two", "three")]


def test_the_events_are_those_of_a_stream_over_http(server, websocket):
    websocket.create("hello", stream_options={"include_obfuscation": False})
    over_websocket = websocket.events()
    body = {
        "model": "scripted",
        "input": "hello",
        "store": False,
        "stream": True,
        "stream_options": {"include_obfuscation": False},
    }
    with server.http() as http:
        text = http.post("/v1/responses", json=body).text
    over_http = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    assert [event["sequence_number"] for event in over_websocket] == list(range(len(over_websocket)))
    assert [(event["type"], sorted(event)) for event in over_websocket] == [
        (event["type"], sorted(event)) for event in over_http
    ]


def test_deltas_are_padded_as_over_http(websocket):
    websocket.create("hello")
    assert all("obfuscation" in event for event in websocket.events() if event["type"].endswith(".delta"))


def test_function_calls_are_answered_on_the_same_connection(websocket):
    tool = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}
    first = websocket.respond("weather", tools=[tool])["response"]
    calls = [item for item in first["output"] if item["type"] == "function_call"]
    outputs = [{"type": "function_call_output", "call_id": call["call_id"], "output": "21 degrees"} for call in calls]
    second = websocket.respond(outputs, tools=[tool], previous_response_id=first["id"])
    assert text_of(second) == '{"degrees": 21}'


# ── continuation ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_continuation_has_the_whole_chain_of_which_nothing_is_stored(server, websocket):
    before, previous = stored_statuses(server), None
    for text in ("one", "two", "three"):
        previous = websocket.respond(text, previous_response_id=previous)["response"]["id"]
    assert stored_statuses(server) == before
    # A stored response that continues them has their items as its input: nothing else has them.
    last = websocket.respond("four", previous_response_id=previous, store=True)["response"]["id"]
    listed = server.client().responses.input_items.list(last, order="asc").data
    texts = [part.text for item in listed for part in item.content]
    assert texts == ["one", f"{ECHO}one", "two", f"{ECHO}two", "three", f"{ECHO}three", "four"]
    assert stored_statuses(server) == {**before, last: "completed"}
    continued = server.client().responses.create(model="scripted", input="five", previous_response_id=last)
    assert continued.output_text == f"{ECHO}five"


def test_after_a_reconnect_a_response_that_is_not_stored_is_missing(server, websocket):
    previous = websocket.respond()["response"]["id"]
    with open_websocket(server) as other:
        message = other.respond(previous_response_id=previous)
        assert error_of(message) == NOT_FOUND
        assert message["error"]["type"] == "invalid_request_error"
        assert previous in message["error"]["message"]
        assert is_usable(other)
    assert text_of(websocket.respond("on", previous_response_id=previous)) == f"{ECHO}on"


def test_a_stored_response_continues_on_every_connection_and_over_http(server, websocket):
    previous = websocket.respond(store=True)["response"]["id"]
    with open_websocket(server) as other:
        following = other.respond("more", store=True, previous_response_id=previous)["response"]["id"]
    sdk = server.client()
    assert sdk.responses.create(model="scripted", input="x", previous_response_id=following).status == "completed"
    assert sdk.responses.retrieve(previous).output_text == f"{ECHO}hello"
    assert text_of(websocket.respond("fork", previous_response_id=previous)) == f"{ECHO}fork"


def test_only_the_newest_response_of_a_chain_can_be_continued(websocket):
    first = websocket.respond("one")["response"]["id"]
    second = websocket.respond("two", previous_response_id=first)["response"]["id"]
    assert error_of(websocket.respond(previous_response_id=first)) == NOT_FOUND
    assert text_of(websocket.respond("three", previous_response_id=second)) == f"{ECHO}three"


@pytest.mark.parametrize("text", [UNANSWERED, "break", "busy"], ids=["an error", "a failed response", "no output"])
def test_a_failed_continuation_evicts_the_response(websocket, text):
    previous = websocket.respond()["response"]["id"]
    assert websocket.respond(text, previous_response_id=previous)["type"] in ("error", "response.failed")
    assert error_of(websocket.respond(previous_response_id=previous)) == NOT_FOUND
    assert is_usable(websocket)


def test_a_continuation_that_is_not_valid_evicts_the_response(websocket):
    previous = websocket.respond()["response"]["id"]
    assert error_of(websocket.respond(previous_response_id=previous, temperature="warm"))[0] == 400
    assert error_of(websocket.respond(previous_response_id=previous)) == NOT_FOUND


def test_an_error_of_another_chain_evicts_nothing(websocket):
    previous = websocket.respond()["response"]["id"]
    assert error_of(websocket.respond(previous_response_id="resp_" + "0" * 32)) == NOT_FOUND
    assert text_of(websocket.respond("on", previous_response_id=previous)) == f"{ECHO}on"


def test_a_chain_continues_after_a_cut_answer(websocket):
    end = websocket.respond("cut")
    assert end["type"] == "response.incomplete"
    assert text_of(websocket.respond("on", previous_response_id=end["response"]["id"])) == f"{ECHO}on"


# ── generate: false ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fields", [{"generate": False}, {"prompt_cache_options": {"prewarm": True}}], ids=str)
def test_a_warm_up_asks_no_model_and_can_be_continued(websocket, fields):
    websocket.create("forever", **fields)  # the model would answer for ten minutes
    events = websocket.events()
    response = events[-1]["response"]
    assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.completed"]
    assert (response["status"], response["output"], response["usage"]["total_tokens"]) == ("completed", [], 0)
    assert text_of(websocket.respond("on", previous_response_id=response["id"])) == f"{ECHO}on"


def test_a_warm_up_needs_no_input_and_is_validated(websocket):
    assert websocket.respond(None, generate=False)["type"] == "response.completed"
    assert error_of(websocket.respond(generate=False, temperature=9)) == (400, "decimal_above_max_value", "temperature")
    assert error_of(websocket.respond(None)) == (400, "missing_required_parameter", "input")


# ── lanes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_requests_of_one_lane_run_in_order(websocket):
    for number in range(5):
        websocket.create(f"number {number}")
    ends = [websocket.events() for _ in range(5)]
    assert [text_of(events[-1]) for events in ends] == [f"{ECHO}number {number}" for number in range(5)]
    assert all(events[0]["type"] == "response.created" for events in ends)


def test_lanes_run_at_the_same_time_and_are_named_in_their_events(websocket):
    websocket.create("forever", stream_id="slow")
    websocket.create("quick", stream_id="fast")
    lanes = []
    while not lanes or lanes[-1][1] != "response.completed":
        event = websocket.receive()
        lanes.append((event["stream_id"], event["type"]))
    assert lanes[-1][0] == "fast"
    assert ("slow", "response.completed") not in lanes


def test_a_lane_is_forked_into_another_and_both_continue(websocket):
    first = websocket.respond("plan", stream_id="main")["response"]["id"]
    fork = websocket.respond("critic", stream_id="critic", previous_response_id=first)
    following = websocket.respond("go on", stream_id="main", previous_response_id=first)
    assert (text_of(fork), text_of(following)) == (f"{ECHO}critic", f"{ECHO}go on")
    last = websocket.respond("end", stream_id="critic", previous_response_id=fork["response"]["id"])
    assert (last["stream_id"], text_of(last)) == ("critic", f"{ECHO}end")


def test_a_fork_that_fails_keeps_its_parent(websocket):
    first = websocket.respond("plan", stream_id="main")["response"]["id"]
    failed = websocket.respond(UNANSWERED, stream_id="other", previous_response_id=first)
    assert (failed["status"], failed["stream_id"]) == (400, "other")
    assert text_of(websocket.respond("on", stream_id="main", previous_response_id=first)) == f"{ECHO}on"


@pytest.mark.parametrize("value", ["", "a b", "x" * 257, 7, ["main"], "ä"], ids=str)
def test_an_invalid_stream_id_is_refused(websocket, value):
    assert error_of(websocket.respond(stream_id=value)) == (400, "invalid_stream_id", "stream_id")


def test_a_connection_has_32_lanes_and_the_default_one(websocket):
    for number in range(32):
        websocket.respond(stream_id=f"lane_{number}", generate=False)
    refused = websocket.respond(stream_id="lane_32")
    assert error_of(refused) == (400, "websocket_stream_limit_reached", "stream_id")
    assert refused["stream_id"] == "lane_32"
    assert text_of(websocket.respond("a", stream_id="lane_0")) == f"{ECHO}a"
    assert is_usable(websocket)


def test_16_responses_run_at_a_time_and_the_others_wait(server, websocket):
    for number in range(17):
        websocket.create("forever", stream_id=f"lane_{number}")
    begun = set()
    while len(begun) < 16:
        event = websocket.receive()
        if event["type"] == "response.output_text.delta":
            begun.add(event["stream_id"])
    with server.http() as http:
        wait_until(lambda: "antwort_responses_running 16.0" in http.get("/metrics").text)


def test_requests_that_wait_are_limited(websocket):
    websocket.create("forever")
    for _ in range(65):
        websocket.create("waits")
    refused = next(message for message in iter(websocket.receive, None) if message["type"] == "error")
    assert error_of(refused) == (429, "websocket_queue_full", None)
    assert refused["headers"]["retry-after"] == "1"


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "message, expected",
    [
        ("", (400, "invalid_json", None)),
        ("{", (400, "invalid_json", None)),
        ('{"type": "response.create", "input": "\\ud800', (400, "invalid_json", None)),
        ("[" * 200, (400, "invalid_json", None)),
        ("[]", (400, "invalid_type", None)),
        ("null", (400, "invalid_type", None)),
        (b"{}", (400, "invalid_json", None)),
        ({}, (400, "missing_required_parameter", "type")),
        ({"type": "response.steer"}, (400, "invalid_value", "type")),
        ({"type": 7}, (400, "invalid_value", "type")),
        ({"type": "response.create", "stream": False}, (400, "unsupported_parameter", "stream")),
        ({"type": "response.create", "background": True}, (400, "unsupported_parameter", "background")),
        ({"type": "response.create", "generate": "no"}, (400, "invalid_type", "generate")),
        ({"type": "response.create", "inputs": "x"}, (400, "unknown_parameter", "inputs")),
        ({"type": "response.create", "model": "scripted", "input": 7}, (400, "invalid_type", "input")),
        ({"type": "response.create", "model": "scripted", "prompt": {}}, (400, "unsupported_parameter", "prompt")),
    ],
    ids=str,
)
def test_an_invalid_message_is_an_error_and_the_connection_stays_usable(websocket, message, expected):
    websocket.send(message)
    assert error_of(websocket.receive()) == expected
    assert is_usable(websocket)


def test_the_names_of_what_happens_in_any_case_are_accepted(websocket):
    assert text_of(websocket.respond("a", stream=True, background=False)) == f"{ECHO}a"


def test_an_error_has_the_id_of_its_request_which_is_in_the_log(server, websocket):
    error = websocket.respond(temperature=9)
    identifier = error["headers"]["x-request-id"]
    assert is_usable(websocket)  # the next request of the lane begins when the one before is in the log
    lines = [json.loads(line) for line in server.read_log().splitlines() if identifier in line]
    assert [(line["route"], line["status"], line["code"], line["param"]) for line in lines] == [
        ("websocket.create", 400, "decimal_above_max_value", "temperature")
    ]
    assert lines[0]["connection_id"].startswith("req_")


def test_a_failure_of_the_model_is_an_error_event_with_its_status_and_a_failed_response(websocket):
    websocket.create("busy")
    *_, error, failed = websocket.events()
    assert error_of(error) == (429, "rate_limit_exceeded", None)
    assert (failed["type"], failed["response"]["error"]["code"]) == ("response.failed", "rate_limit_exceeded")
    assert is_usable(websocket)


def test_a_message_that_is_too_large_is_refused_before_it_is_received(tmp_path):
    with run_server(tmp_path, {"server": {"max_body": 100_000}}) as small, open_websocket(small) as websocket:
        assert text_of(websocket.respond("x" * 90_000)).startswith(ECHO)
        # Only the head of the frame: it announces 200,000 bytes.
        websocket.connection.socket.sendall(bytes([0x81, 0xFF]) + (200_000).to_bytes(8, "big") + b"mask")
        assert error_of(websocket.receive()) == (413, "request_too_large", None)
        assert websocket.closed()[0] == 1009


def test_a_message_in_too_many_fragments_is_refused(tmp_path):
    with run_server(tmp_path, {"server": {"max_body": 50_000}}) as small, open_websocket(small) as websocket:
        body = json.dumps({"type": "response.create", "model": "scripted", "input": "x" * 20_000, "store": False})
        websocket.connection.send(body[at : at + 7] for at in range(0, len(body), 7))
        assert text_of(websocket.events()[-1]).startswith(ECHO)
        websocket.connection.send("x" * 1000 for _ in range(51))
        assert error_of(websocket.receive()) == (413, "request_too_large", None)
        assert websocket.closed()[0] == 1009


# ── compaction ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_compaction_starts_a_new_chain(websocket):
    first = websocket.respond("remember this: " + "many words " * 50)["response"]
    compacted = websocket.respond([{"type": "compaction_trigger"}], previous_response_id=first["id"])["response"]
    assert [item["type"] for item in compacted["output"]] == ["compaction"]
    assert error_of(websocket.respond(previous_response_id=first["id"])) == NOT_FOUND
    assert text_of(websocket.respond("on", previous_response_id=compacted["id"])) == f"{ECHO}on"


def test_a_managed_context_is_compacted_and_continued(websocket):
    managed = [{"type": "compaction", "compact_threshold": 1000}]
    first = websocket.respond("words " * 2000, context_management=managed)["response"]
    second = websocket.respond("more", previous_response_id=first["id"], context_management=managed)["response"]
    assert "compaction" in {item["type"] for item in [*first["output"], *second["output"]]}
    assert text_of(websocket.respond("on", previous_response_id=second["id"])) == f"{ECHO}on"


def test_a_compacted_window_is_the_input_of_a_new_chain(server, websocket):
    with server.http() as http:
        window = http.post("/v1/responses/compact", json={"model": "scripted", "input": "remember"}).json()["output"]
    message = {"type": "message", "role": "user", "content": "on"}
    response = websocket.respond([*window, message])
    assert text_of(response) == f"{ECHO}on"
    assert text_of(websocket.respond("b", previous_response_id=response["response"]["id"])) == f"{ECHO}b"


def test_the_histories_of_a_connection_are_bounded(tmp_path):
    config = {"server": {"websocket": {"max_history": 20_000}}}
    with run_server(tmp_path, config) as small, open_websocket(small) as websocket:
        kept = websocket.respond("x" * 2000, stream_id="a")["response"]["id"]
        large = websocket.respond("y" * 15_000)["response"]["id"]  # with its output more than the limit
        assert error_of(websocket.respond(previous_response_id=large)) == NOT_FOUND
        other = websocket.respond("z" * 8500, stream_id="b")["response"]["id"]  # leaves no space for the first one
        assert error_of(websocket.respond(stream_id="c", previous_response_id=kept)) == NOT_FOUND
        assert text_of(websocket.respond("on", stream_id="b", previous_response_id=other)) == f"{ECHO}on"


# ── the end of a connection ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_client_that_leaves_cancels_its_responses(server):
    with open_websocket(server) as websocket:
        websocket.create("forever", store=True)
        identifier = websocket.receive()["response"]["id"]
        wait_until(lambda: stored_statuses(server)[identifier] == "in_progress")
    wait_until(lambda: stored_statuses(server)[identifier] == "cancelled")
    with server.http() as http:
        wait_until(lambda: "antwort_responses_running 0.0" in http.get("/metrics").text)


def test_a_plain_get_is_405_and_another_path_is_not_upgraded(server):
    with server.http() as http:
        assert http.get("/v1/responses").status_code == 405
    upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    with server.http(headers={**upgrade, "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ=="}) as http:
        assert http.get("/v1/models").status_code == 200
