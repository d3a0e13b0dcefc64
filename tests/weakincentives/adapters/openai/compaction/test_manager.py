from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from fake_compaction_api import FakeCompactionApi, compaction_api, tokens
from fake_responses_api import FakeResponse, error, function_call, message
from openai import OpenAI

from weakincentives.adapters.openai import (
    CompactionConfig,
    CompactionError,
    CompactionManager,
    CompactionState,
    TranscriptItem,
)
from weakincentives.adapters.openai.compaction.manager import RequestLimits
from weakincentives.adapters.openai.compaction.support import ServerSupport
from weakincentives.adapters.retry import ThrottlePolicy
from weakincentives.budget import Budget, BudgetTracker
from weakincentives.clock import ManualClock
from weakincentives.deadlines import Deadline
from weakincentives.errors import ProviderFault, WinkError
from weakincentives.runtime import CompactionRebuilt, CompactionUnavailable, ContextCompacted, Session

CONFIG = CompactionConfig(threshold_tokens=1000, model="a-model", mode="client")
DEAD = ProviderFault("400: dead", status=400, payload={"code": "invalid_encrypted_content"})


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}


def answered(call_id: str, text: str = "done") -> list[dict[str, Any]]:
    return [function_call("f", call_id), {"type": "function_call_output", "call_id": call_id, "output": text}]


HISTORY = [user("one"), *answered("call_1"), message("two")]


@pytest.fixture
def api() -> Iterator[FakeCompactionApi]:
    with compaction_api(lambda text, items: [message("ok")]) as running:
        yield running


@pytest.fixture
def client(api: FakeCompactionApi) -> Iterator[OpenAI]:
    with OpenAI(base_url=api.url, api_key="none", timeout=30) as client:
        yield client


def manage(client: OpenAI, config: CompactionConfig = CONFIG, **options: Any) -> CompactionManager:
    options.setdefault("limits", RequestLimits(clock=ManualClock()))
    return CompactionManager(client, config, options.pop("session", None) or Session(), **options)


# ── should_compact ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_should_compact_above_the_threshold_only(client):
    manager = manage(client)

    assert [manager.should_compact(tokens_now) for tokens_now in (0, 1000, 1001)] == [False, False, True]
    assert not manage(client, replace(CONFIG, enabled=False)).should_compact(10**9)


def test_window_that_stays_above_the_threshold_is_compacted_again_only_after_growth(client):
    session = Session()
    session[CompactionState].seed(CompactionState(compaction_count=1, tokens_after=1500))
    manager = manage(client, session=session)

    assert [manager.should_compact(tokens_now) for tokens_now in (1501, 1600, 1601)] == [False, False, True]


# ── compact ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_output_replaces_the_history_and_is_kept_whole(api, client):
    manager = manage(client, parameters={"instructions": "Be brief."})

    assert manager.should_compact(1234)
    window = manager.compact(HISTORY)

    assert api.compactions == [{"model": "a-model", "input": HISTORY, "instructions": "Be brief."}]
    assert [item["type"] for item in window] == ["message", "compaction"]
    assert window[0] == user("one")
    state = manager.session[CompactionState].latest()
    assert state is not None
    assert list(state.window) == window
    assert state.encrypted_items == (window[1],)
    assert (state.last_compaction_tokens, state.tokens_before, state.compaction_count) == (1234, 1234, 1)
    assert state.tokens_after == manager.estimate(window)
    (event,) = manager.session[ContextCompacted].all()
    assert (event.mode, event.tokens_before, event.tokens_after) == ("client", 1234, state.tokens_after)
    assert (event.compaction_count, event.items_before, event.items_after) == (1, 4, 2)
    assert event.usage.output_tokens == 7


def test_second_compaction_contains_the_window_of_the_first(api, client):
    manager = manage(client)
    window = manager.compact(HISTORY)

    again = manager.compact([*window, user("three"), message("four")])

    assert api.compactions[1]["input"][:2] == window
    assert api.unpaired == []
    assert manager.state.compaction_count == 2
    assert [item["type"] for item in again] == ["message", "message", "compaction"]
    assert [one.item.get("role", one.item["type"]) for one in manager.session[TranscriptItem].all()] == [
        *("user", "function_call", "function_call_output", "assistant"),
        *("user", "assistant"),
    ]


def test_unanswered_calls_stay_as_they_are(api, client):
    open_calls = [function_call("f", "call_8"), function_call("f", "call_9"), answered("call_9")[1]]

    window = manage(client).compact([*HISTORY, *open_calls])

    assert api.compactions[0]["input"] == HISTORY
    assert window[-3:] == open_calls


def test_nothing_to_compact_sends_nothing(api, client):
    assert manage(client).compact([]) == []
    assert manage(client).compact([function_call("f")]) == [function_call("f")]
    assert api.requests == []


def test_items_of_the_sdk_are_converted(api, client):
    response = client.responses.create(model="a-model", input=[{"role": "user", "content": "Hello."}])

    manage(client).compact([user("one"), *response.output])

    assert api.compactions[0]["input"][1]["content"][0]["text"] == "ok"
    with pytest.raises(TypeError, match="a message must be a dictionary or an item of a response, not 'hello'"):
        manage(client).compact(["hello"])  # pyright: ignore[reportArgumentType] - the point


def test_without_a_model_the_server_chooses(api, client):
    manager = manage(client, replace(CONFIG, model=None))
    manager.compact(HISTORY)
    manager.count(HISTORY, [])

    assert [set(request.body) for request in api.requests] == [{"input"}, {"input"}]


@pytest.mark.parametrize("config, sent", [("a-model", "a-model"), (None, "b-model")])
def test_model_of_the_configuration_takes_precedence(api, client, config, sent):
    manage(client, replace(CONFIG, model=config), model="b-model").compact(HISTORY)

    assert api.compactions[0]["model"] == sent


def test_usage_counts_in_the_budget(client):
    tracker = BudgetTracker(Budget(max_total_tokens=10**6))
    manager = manage(client, limits=RequestLimits(tracker=tracker))
    manager.compact(HISTORY)

    usage = manager.take_usage()
    assert usage.output_tokens == 7
    assert tracker.usage == usage
    assert manager.take_usage().total_tokens == 0


def test_failed_requests_are_retried(api, client):
    clock = ManualClock()
    api.compact_failures = [error(429, "Slow down.", retry_after="7"), error(503, "Busy.")]

    manage(client, limits=RequestLimits(clock=clock)).compact(HISTORY)

    assert len(api.compactions) == 3
    assert clock.slept[0] >= 7


def test_error_has_tokens_and_cause(api, client):
    api.compact_failures = [error(400, "No.")]
    manager = manage(client)
    assert manager.should_compact(5000)
    with pytest.raises(
        CompactionError, match=r"the context could not be compacted \(5000 tokens\): 400: No\."
    ) as caught:
        manager.compact(HISTORY)

    assert isinstance(caught.value, WinkError)
    assert caught.value.token_count == 5000
    assert isinstance(caught.value.original_error, ProviderFault)
    assert manager.session[CompactionState].all() == ()
    assert manager.session[TranscriptItem].all() == ()


@pytest.mark.parametrize(
    "body, expected",
    [
        ({"output": [user("one")]}, "no item of type 'compaction'"),
        ({"output": [{"type": "compaction"}]}, "no item of type 'compaction' with content"),
        ({"output": "text"}, "is not a list"),
        (b"<html>", "not JSON"),
    ],
)
def test_malformed_answers_are_errors(api, client, body, expected):
    api.compact_failures = [FakeResponse(body)]
    with pytest.raises(CompactionError, match=expected):
        manage(client).compact(HISTORY)

    assert len(api.compactions) == 1


def test_deadline_limits_the_retries(api, client):
    clock = ManualClock()
    api.compact_failures = [error(429, "Slow down.", retry_after="60")]
    limits = RequestLimits(clock=clock, deadline=Deadline.after(30, clock=clock))
    with pytest.raises(CompactionError, match="Slow down"):
        manage(client, limits=limits).compact(HISTORY)

    assert clock.slept == []


# ── servers without the endpoint ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", [404, 405, 501])
def test_auto_turns_off_with_one_event(api, client, status, caplog):
    api.endpoint_status = status
    support = ServerSupport()
    manager = manage(client, replace(CONFIG, mode="auto"), support=support)
    with caplog.at_level(logging.WARNING):
        assert manager.compact(HISTORY) == HISTORY
        assert manager.compact(HISTORY) == HISTORY

    assert len(api.compactions) == 1
    (event,) = manager.session[CompactionUnavailable].all()
    assert "neither context_management nor /responses/compact" in event.reason
    assert caplog.messages == [event.reason]
    assert not manager.should_compact(10**9)


def test_client_mode_without_the_endpoint_is_an_error(api, client):
    api.endpoint_status = 404
    with pytest.raises(CompactionError, match="use mode='auto', or a server that has it"):
        manage(client).compact(HISTORY)


def test_unknown_model_is_an_error_also_with_auto(api, client):
    api.compact_failures = [error(404, "No such model.", code="model_not_found")]
    with pytest.raises(CompactionError, match="No such model"):
        manage(client, replace(CONFIG, mode="auto")).compact(HISTORY)


# ── zero data retention ──────────────────────────────────────────────────────────────────────────────────────────────


def test_zdr_sends_store_false(api, client):
    manage(client, replace(CONFIG, zdr_mode=True)).compact(HISTORY)

    assert [body["store"] for body in api.compactions] == [False]


def test_endpoint_that_knows_no_store_parameter_is_asked_without_it(api, client):
    api.takes_store = False
    manager = manage(client, replace(CONFIG, zdr_mode=True))
    window = manager.compact(HISTORY)
    manager.compact([*window, user("more")])

    assert ["store" in body for body in api.compactions] == [True, False, False]


# ── replay ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_inject_prepends_the_window_once(client):
    manager = manage(client)
    assert manager.inject_encrypted_items([user("new")]) == [user("new")]
    window = manager.compact(HISTORY)

    messages = manager.inject_encrypted_items([user("new")])

    assert messages == [*window, user("new")]
    assert manager.inject_encrypted_items(messages) == messages
    assert manager.inject_encrypted_items(window) == window


def test_snapshot_and_restore(client):
    manager = manage(client)
    manager.compact(HISTORY)
    before, state = manager.session.snapshot(), manager.state
    manager.compact([*state.window, user("more")])
    assert manager.state.compaction_count == 2

    manager.session.restore(before)

    assert manager.state == state
    assert len(manager.session[TranscriptItem].all()) == 4
    assert len(manager.session[ContextCompacted].all()) == 2, "events are kept"


# ── dead items ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_rebuild_restores_the_plain_transcript(client):
    manager = manage(client)
    window = manager.compact(HISTORY)

    rebuilt = manager.rebuild([*window, user("new")], DEAD)

    expected = [{key: value for key, value in item.items() if key != "id"} for item in [*HISTORY, user("new")]]
    assert rebuilt == expected
    assert manager.state.encrypted_items == ()
    assert manager.state.covered == 0
    (event,) = manager.session[CompactionRebuilt].all()
    assert (event.reason, event.items, event.truncated) == ("400: dead", 5, False)
    assert manager.compact(rebuilt)[-1]["type"] == "compaction"
    assert len(manager.session[TranscriptItem].all()) == 5, "nothing is kept twice"


def long_history() -> list[dict[str, Any]]:
    return [user("start"), *(item for at in range(20) for item in answered(f"call_{at}", "x" * 800))]


def test_long_transcript_is_compacted_in_parts(api, client):
    manager = manage(client)
    window = manager.compact(long_history())
    api.key = "key-2"

    rebuilt = manager.rebuild([*window, user("new")], DEAD)

    assert len(api.compactions) > 4
    assert api.unpaired == []
    assert rebuilt[-1] == user("new")
    text = "\n".join(api.read(rebuilt))
    assert all(f"call_{at}" in text for at in range(20))
    assert manager.state.encrypted_items
    assert not manager.session[CompactionRebuilt].all()[0].truncated


def test_long_transcript_is_truncated_without_the_endpoint(api, client):
    manager = manage(client)
    window = manager.compact(long_history())
    api.endpoint_status = 404

    rebuilt = manager.rebuild([*window, user("new")], DEAD)

    assert rebuilt[0] == user("start")
    assert "no longer available" in rebuilt[1]["content"]
    assert rebuilt[-1] == user("new")
    assert manager.estimate(rebuilt) <= 1200
    assert manager.session[CompactionRebuilt].all()[0].truncated

    api.endpoint_status, manager.support.endpoint = 200, None
    again = manager.rebuild([*rebuilt, user("last")], DEAD)
    text = "\n".join(api.read(again))
    assert all(f"call_{at}" in text for at in range(20)), "the plain transcript is still complete"
    assert (text.count("start"), text.count("no longer available")) == (1, 0)


def test_window_without_a_transcript_is_rebuilt_from_its_plain_items(client):
    session = Session()
    sealed = {"id": "cmp_1", "type": "compaction", "encrypted_content": "sealed"}
    session[CompactionState].seed(CompactionState((sealed,), 9, 1, (user("one"), sealed), covered=2))
    manager = manage(client, session=session)

    assert manager.rebuild([user("one"), sealed, user("two")], DEAD) == [user("one"), user("two")]


def test_history_of_one_part_that_is_too_long_is_an_error(api, client):
    api.model_window = 100
    manager = manage(client)
    with pytest.raises(CompactionError, match="context window"):
        manager.compact([user("x" * 800)])


def test_failure_while_rebuilding_keeps_the_state(api, client):
    manager = manage(client, limits=RequestLimits(throttle=ThrottlePolicy(max_attempts=1)))
    window = manager.compact(long_history())
    state, transcript = manager.state, manager.session[TranscriptItem].all()
    api.compact_failures = [error(500, "Broken.")]
    with pytest.raises(CompactionError, match="the context could not be rebuilt"):
        manager.rebuild(window, DEAD)

    assert manager.state == state
    assert manager.session[TranscriptItem].all() == transcript


def test_compact_rebuilds_a_dead_window(api, client):
    manager = manage(client)
    window = manager.compact(HISTORY)
    api.key = "key-2"

    rebuilt = manager.compact([*window, user("new")])

    assert "call_1" in "\n".join(api.read(rebuilt))
    assert len(manager.session[CompactionRebuilt].all()) == 1


# ── measuring ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_tokens_are_counted_by_the_server_else_estimated(api, client):
    manager = manage(client)
    tools = [{"type": "web_search"}]

    assert manager.count(HISTORY, tools) == tokens(HISTORY)
    assert api.requests[0].body == {"model": "a-model", "input": HISTORY, "tools": tools}
    api.routes["POST /responses/input_tokens"] = lambda _: error(404, "no")
    manager.calibrate(300, 600)
    assert manager.count([user("a" * 500)], []) == pytest.approx(280, abs=10)
    manager.count(HISTORY, [])
    assert len(api.requests) == 2, "a missing endpoint is not asked again"


def test_tokens_after_a_compaction_are_corrected_by_the_next_response(client):
    manager = manage(client)
    manager.compact(HISTORY)

    manager.measured(321)
    manager.measured(400)

    assert manager.state.tokens_after == 321
