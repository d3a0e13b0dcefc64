"""Long conversations of the OpenAI adapter with compaction, against a fake server that checks every request."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
from fake_compaction_api import FakeCompactionApi, compaction_api, tokens, unpaired
from fake_responses_api import error, function_call, message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weakincentives.adapters.openai import CompactionConfig, CompactionState, OpenAIModelConfig
from weakincentives.clock import ManualClock
from weakincentives.prompt import MarkdownSection, Prompt, Tool, ToolContext, ToolResult
from weakincentives.runtime import CompactionRebuilt, ContextCompacted, Session, ToolInvoked

THRESHOLD = 8000
FACTS = {1: "the harbour code is 7391", 50: "the cook is called Imre", 150: "the blue key opens the attic"}


@dataclass(frozen=True)
class Page:
    number: int
    size: int = 1000


def read_page(params: Page, *, context: ToolContext) -> ToolResult[str]:
    fact = FACTS.get(params.number, "nothing of interest")
    return ToolResult.ok(f"Page {params.number}: {fact}. {'x' * params.size}")


READ_PAGE = Tool[Page, str](name="read_page", description="Read a page.", handler=read_page)


def prompt(text: str = "Read all pages.") -> Prompt[Any]:
    return Prompt(
        ns="n", key="k", sections=[MarkdownSection(title="Task", key="task", template=text, tools=[READ_PAGE])]
    )


@pytest.mark.parametrize(
    "mode, support", [("client", "refused"), ("server", "supported"), ("auto", "refused"), ("auto", "ignored")]
)
def test_200_turns_stay_below_the_window_and_keep_the_facts(mode, support):
    def model(text: str, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        number = text.count('"name": "read_page"') + 1
        if number <= 200:
            return [function_call("read_page", f"call_{number}", number=number, size=1000)]
        return [message("; ".join(fact for fact in FACTS.values() if fact in text))]

    with compaction_api(model) as api:
        api.context_management = support
        session = Session()
        config = CompactionConfig(threshold_tokens=THRESHOLD, mode=mode)
        answer = api.adapter(compaction=config, max_turns=250).evaluate(prompt(), session=session)

    assert answer.text == "; ".join(FACTS.values())
    assert answer.turns == 201
    assert len(session[ToolInvoked].all()) == 200
    assert api.unpaired == []
    state = session[CompactionState].latest()
    assert state is not None
    assert state.compaction_count == len(session[ContextCompacted].all()) >= 4
    plain = sum(tokens(one.rendered_output) for one in session[ToolInvoked].all())
    assert plain > 5 * THRESHOLD
    assert api.largest < 3 * THRESHOLD


def test_conversation_of_many_evaluations_with_zero_data_retention():
    def model(text: str, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        number = text.count('"name": "read_page"') + 1
        if items[-1].get("role") == "user" and number <= 200:
            return [function_call("read_page", f"call_{number}", number=number, size=3000)]
        return [message("; ".join(fact for fact in FACTS.values() if fact in text))]

    with compaction_api(model) as api:
        session = Session()
        adapter = api.adapter(compaction=CompactionConfig(threshold_tokens=THRESHOLD, zdr_mode=True, mode="client"))
        answers = [adapter.evaluate(prompt(f"Read page {at}."), session=session).text for at in range(60)]

    assert answers[-1] == f"{FACTS[1]}; {FACTS[50]}"
    assert all(request.body["store"] is False for request in api.requests)
    assert api.unpaired == []
    state = session[CompactionState].latest()
    assert state is not None
    assert state.compaction_count >= 4


# ── property: calls and outputs stay paired in everything that is sent ───────────────────────────────────────────────


@dataclass(frozen=True)
class Turn:
    """One response: the sizes of its calls, and what happens at the server before the next request."""

    sizes: tuple[int, ...]
    reasoning: bool
    place: int
    rotates: bool
    fails: bool


TURNS = st.lists(
    st.builds(
        Turn,
        sizes=st.lists(st.sampled_from([10, 900, 4500]), max_size=3).map(tuple),
        reasoning=st.booleans(),
        place=st.integers(0, 4),
        rotates=st.integers(0, 5).map(lambda n: n == 0),
        fails=st.integers(0, 5).map(lambda n: n == 0),
    ),
    max_size=10,
)


def play(api: FakeCompactionApi, turns: list[Turn]) -> Any:
    """A model that plays these turns, one for each response. A turn without calls ends an evaluation."""
    remaining = list(enumerate(turns))
    keys = iter(range(2, 1000))

    def model(text: str, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if not remaining:
            return [message("End.")]
        at, turn = remaining.pop(0)
        thought = {"id": f"rs_{at}", "type": "reasoning", "summary": [], "encrypted_content": api.key}
        calls = [
            function_call("read_page", f"call_{at}_{number}", number=1000 * at + number, size=size)
            for number, size in enumerate(turn.sizes)
        ]
        api.place = turn.place
        if turn.fails:
            api.compact_failures = [error(503, "Busy.")]
        output = [*([thought] if turn.reasoning else []), *(calls or [message("Part.")])]
        if turn.rotates:
            api.next_key = f"key-{next(keys)}"
        return output

    return model


@pytest.mark.parametrize("mode, support", [("client", "refused"), ("server", "supported"), ("auto", "ignored")])
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(turns=TURNS)
def test_calls_and_outputs_stay_paired_in_every_request(mode, support, turns):
    with compaction_api(lambda text, items: []) as api:
        api.model, api.context_management = play(api, turns), support
        session = Session()
        config = CompactionConfig(threshold_tokens=1000, mode=mode)
        adapter = api.adapter(compaction=config, clock=ManualClock(), model_config=OpenAIModelConfig(store=False))
        for part in count():
            if adapter.evaluate(prompt(f"Part {part}."), session=session).text == "End.":
                break

        sent = [request.body["input"] for request in api.requests]
        assert [found for items in sent if (found := unpaired(items))] == []
        rotations = sum(turn.rotates for turn in turns)
        assert len(session[CompactionRebuilt].all()) <= 2 * rotations
        assert not any(event.truncated for event in session[CompactionRebuilt].all())
        state = session[CompactionState].latest()
        assert state is not None
        assert unpaired(list(state.window)) == []
        text = "\n".join(api.read(list(state.window)))
        pages = [event.params.number for event in session[ToolInvoked].all()]
        assert [number for number in pages if f"Page {number}:" not in text] == []
