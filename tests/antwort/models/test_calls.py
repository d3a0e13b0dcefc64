from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.engine.ports import Finished
from antwort.models.calls import CallAssembler, CallDelta, CallWithoutName, FunctionDelta
from antwort.testing.model import AnswerCall, fold

WEATHER = '{"city": "Rome"}'
NEWS = '{"topic": "a \\"b\\" {c}"}'


def delta(index=None, call_id=None, name=None, arguments=None) -> CallDelta:
    return CallDelta(index, call_id, FunctionDelta(name, arguments))


def assemble(*deltas: CallDelta, used_ids=()) -> list[AnswerCall]:
    new_ids = (f"new_{number}" for number in itertools.count())
    assembler = CallAssembler(used_ids=used_ids, new_call_id=lambda: next(new_ids))
    pieces = [piece for one in deltas for piece in assembler.add(one)]
    return list(fold([*pieces, *assembler.close(), Finished()]).calls)


BOTH = [AnswerCall("weather", WEATHER, "a"), AnswerCall("news", NEWS, "b")]
WITHOUT_IDS = [AnswerCall("weather", WEATHER, "new_0"), AnswerCall("news", NEWS, "new_1")]


def test_fragments_as_sent_by_openai_and_vllm():
    assert (
        assemble(
            delta(0, "a", "weather", ""),
            delta(0, arguments=WEATHER[:5]),
            delta(0, arguments=WEATHER[5:]),
            delta(1, "b", "news", ""),
            delta(1, arguments=NEWS),
        )
        == BOTH
    )


def test_interleaved_fragments():
    assert (
        assemble(
            delta(0, "a", "weather", WEATHER[:3]),
            delta(1, "b", "news", NEWS[:3]),
            delta(0, arguments=WEATHER[3:]),
            delta(1, arguments=NEWS[3:]),
        )
        == BOTH
    )


def test_complete_calls_that_all_have_index_0():
    assert assemble(delta(0, "a", "weather", WEATHER), delta(0, "b", "news", NEWS)) == BOTH
    assert assemble(delta(0, None, "weather", WEATHER), delta(0, None, "news", NEWS)) == WITHOUT_IDS


def test_a_complete_call_followed_by_whitespace():
    assert assemble(delta(0, None, "weather", WEATHER), delta(0, None, None, "\n "), delta(0, None, "news", NEWS)) == [
        AnswerCall("weather", WEATHER + "\n ", "new_0"),
        AnswerCall("news", NEWS, "new_1"),
    ]


def test_complete_calls_without_index():
    assert assemble(delta(None, "a", "weather", WEATHER), delta(None, "b", "news", NEWS)) == BOTH


def test_complete_calls_without_index_and_id():
    assert assemble(delta(name="weather", arguments=WEATHER), delta(name="news", arguments=NEWS)) == WITHOUT_IDS
    assert [call.arguments for call in assemble(*[delta(name="weather", arguments=WEATHER)] * 3)] == [WEATHER] * 3


def test_fragments_without_index():
    assert (
        assemble(
            delta(None, "a", "weather", WEATHER[:4]),
            delta(arguments=WEATHER[4:]),
            delta(None, "b", "news", NEWS[:4]),
            delta(None, "b", arguments=NEWS[4:]),
        )
        == BOTH
    )


@pytest.mark.parametrize("index, call_id", [(0, "a"), (0, None), (None, "a"), (None, None)])
def test_the_name_repeated_in_each_fragment(index, call_id):
    fragments = [WEATHER[at : at + 3] for at in range(0, len(WEATHER), 3)]
    calls = assemble(*(delta(index, call_id, "weather", part) for part in fragments))

    assert calls == [AnswerCall("weather", WEATHER, call_id or "new_0")]


def test_a_repeated_name_after_complete_arguments_starts_no_call():
    assert assemble(delta(0, None, "weather", WEATHER), delta(0, None, "weather", "")) == [
        AnswerCall("weather", WEATHER, "new_0")
    ]


def test_a_name_in_fragments():
    assert assemble(delta(0, "a", "wea"), delta(0, None, "ther"), delta(0, arguments="{}"))[0].name == "weather"
    assert assemble(delta(0, "a", "wea"), delta(0, "a", "weather"), delta(0, arguments="{}"))[0].name == "weather"


def test_arguments_as_an_object_and_no_arguments():
    assert json.loads(assemble(delta(0, "a", "weather", {"city": "Rome"}))[0].arguments) == {"city": "Rome"}
    assert assemble(delta(0, "a", "now")) == [AnswerCall("now", "", "a")]


def test_a_late_id_and_a_numeric_id():
    assert assemble(delta(0, None, "weather", ""), delta(0, "a"), delta(0, arguments=WEATHER)) == BOTH[:1]
    assert assemble(delta(None, None, "weather"), delta(None, 7, None, WEATHER))[0].call_id == "7"


def test_used_ids_are_replaced():
    calls = assemble(delta(0, "a", "weather", WEATHER), delta(1, "a", "news", NEWS), used_ids=["a"])
    assert [call.call_id for call in calls] == ["new_0", "new_1"]
    calls = assemble(delta(0, "a", "weather", WEATHER), delta(1, "a", "news", NEWS))
    assert [call.call_id for call in calls] == ["a", "new_0"]


def test_large_indexes():
    assert assemble(delta(10**9, "a", "weather", WEATHER), delta(3, "b", "news", NEWS)) == BOTH


def test_a_name_after_the_arguments():
    assert assemble(delta(0, "a", None, WEATHER), delta(0, None, "weather", "")) == BOTH[:1]


def test_a_call_without_name_is_an_error():
    with pytest.raises(CallWithoutName):
        assemble(delta(0, "a", None, WEATHER))
    assert assemble(delta(0, "a")) == []


JSON = st.dictionaries(st.text(max_size=5), st.one_of(st.text(), st.integers(), st.lists(st.text())), max_size=3)


@given(
    st.lists(st.tuples(st.sampled_from(["f", "g", "ff"]), JSON), min_size=1, max_size=4),
    st.data(),
    st.booleans(),
    st.booleans(),
)
def test_any_split_gives_the_same_calls(expected, data, has_ids, is_repeated):
    streams: list[list[CallDelta]] = []
    for index, (name, arguments) in enumerate(expected):
        call_id, text = (f"id_{index}" if has_ids else None), json.dumps(arguments)
        cuts = sorted({0, len(text), *data.draw(st.lists(st.integers(0, len(text)), max_size=4))})
        fragments = [text[start:stop] for start, stop in itertools.pairwise(cuts)]
        first = delta(index, call_id, name, "")
        rest = [
            delta(index, call_id if is_repeated else None, name if is_repeated else None, part) for part in fragments
        ]
        streams.append([first, *rest])
    # Each call starts after the previous one has started; the fragments after that may be interleaved.
    deltas: list[CallDelta] = []
    started = 0
    while any(streams):
        available = [at for at, stream in enumerate(streams) if stream and at <= started]
        at = data.draw(st.sampled_from(available))
        started = max(started, at + 1)
        deltas.append(streams[at].pop(0))

    calls = assemble(*deltas)

    assert [(call.name, json.loads(call.arguments)) for call in calls] == expected
