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


def delta(index=None, ident=None, name=None, arguments=None) -> CallDelta:
    return CallDelta(index, ident, FunctionDelta(name, arguments))


def assemble(*deltas: CallDelta, taken=()) -> list[AnswerCall]:
    minted = (f"minted_{at}" for at in itertools.count())
    assembler = CallAssembler(used_ids=taken, new_call_id=lambda: next(minted))
    pieces = [piece for one in deltas for piece in assembler.add(one)]
    return list(fold([*pieces, *assembler.close(), Finished()]).calls)


BOTH = [AnswerCall("weather", WEATHER, "a"), AnswerCall("news", NEWS, "b")]
UNNAMED = [AnswerCall("weather", WEATHER, "minted_0"), AnswerCall("news", NEWS, "minted_1")]


def test_as_openai_and_vllm_send_them():
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


def test_side_by_side():
    assert (
        assemble(
            delta(0, "a", "weather", WEATHER[:3]),
            delta(1, "b", "news", NEWS[:3]),
            delta(0, arguments=WEATHER[3:]),
            delta(1, arguments=NEWS[3:]),
        )
        == BOTH
    )


def test_whole_and_all_of_them_with_index_0():
    assert assemble(delta(0, "a", "weather", WEATHER), delta(0, "b", "news", NEWS)) == BOTH
    assert assemble(delta(0, None, "weather", WEATHER), delta(0, None, "news", NEWS)) == UNNAMED


def test_whole_with_room_behind_it():
    assert assemble(delta(0, None, "weather", WEATHER), delta(0, None, None, "\n "), delta(0, None, "news", NEWS)) == [
        AnswerCall("weather", WEATHER + "\n ", "minted_0"),
        AnswerCall("news", NEWS, "minted_1"),
    ]


def test_whole_without_an_index():
    assert assemble(delta(None, "a", "weather", WEATHER), delta(None, "b", "news", NEWS)) == BOTH


def test_whole_without_index_and_id_also_of_the_same_function():
    assert assemble(delta(name="weather", arguments=WEATHER), delta(name="news", arguments=NEWS)) == UNNAMED
    assert [call.arguments for call in assemble(*[delta(name="weather", arguments=WEATHER)] * 3)] == [WEATHER] * 3


def test_fragments_without_an_index():
    assert (
        assemble(
            delta(None, "a", "weather", WEATHER[:4]),
            delta(arguments=WEATHER[4:]),
            delta(None, "b", "news", NEWS[:4]),
            delta(None, "b", arguments=NEWS[4:]),
        )
        == BOTH
    )


@pytest.mark.parametrize("index, ident", [(0, "a"), (0, None), (None, "a"), (None, None)])
def test_a_name_that_is_repeated_with_each_fragment(index, ident):
    fragments = [WEATHER[at : at + 3] for at in range(0, len(WEATHER), 3)]
    calls = assemble(*(delta(index, ident, "weather", part) for part in fragments))

    assert calls == [AnswerCall("weather", WEATHER, ident or "minted_0")]


def test_a_repeated_name_after_the_end_begins_nothing():
    assert assemble(delta(0, None, "weather", WEATHER), delta(0, None, "weather", "")) == [
        AnswerCall("weather", WEATHER, "minted_0")
    ]


def test_a_name_in_fragments_and_one_that_grows():
    assert assemble(delta(0, "a", "wea"), delta(0, None, "ther"), delta(0, arguments="{}"))[0].name == "weather"
    assert assemble(delta(0, "a", "wea"), delta(0, "a", "weather"), delta(0, arguments="{}"))[0].name == "weather"


def test_arguments_as_an_object_and_none_at_all():
    assert json.loads(assemble(delta(0, "a", "weather", {"city": "Rome"}))[0].arguments) == {"city": "Rome"}
    assert assemble(delta(0, "a", "now")) == [AnswerCall("now", "", "a")]


def test_an_id_that_comes_late_and_one_that_is_a_number():
    assert assemble(delta(0, None, "weather", ""), delta(0, "a"), delta(0, arguments=WEATHER)) == BOTH[:1]
    assert assemble(delta(None, None, "weather"), delta(None, 7, None, WEATHER))[0].call_id == "7"


def test_ids_that_were_given_before_are_given_anew():
    calls = assemble(delta(0, "a", "weather", WEATHER), delta(1, "a", "news", NEWS), taken=["a"])
    assert [call.call_id for call in calls] == ["minted_0", "minted_1"]
    calls = assemble(delta(0, "a", "weather", WEATHER), delta(1, "a", "news", NEWS))
    assert [call.call_id for call in calls] == ["a", "minted_0"]


def test_an_index_that_is_far_away():
    assert assemble(delta(10**9, "a", "weather", WEATHER), delta(3, "b", "news", NEWS)) == BOTH


def test_a_name_after_its_arguments():
    assert assemble(delta(0, "a", None, WEATHER), delta(0, None, "weather", "")) == BOTH[:1]


def test_a_call_of_nothing_is_an_error():
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
def test_any_split_comes_to_the_same(wanted, data, ids, repeated):
    streams: list[list[CallDelta]] = []
    for index, (name, arguments) in enumerate(wanted):
        ident, text = (f"id_{index}" if ids else None), json.dumps(arguments)
        cuts = sorted({0, len(text), *data.draw(st.lists(st.integers(0, len(text)), max_size=4))})
        fragments = [text[start:stop] for start, stop in itertools.pairwise(cuts)]
        first = delta(index, ident, name, "")
        rest = [delta(index, ident if repeated else None, name if repeated else None, part) for part in fragments]
        streams.append([first, *rest])
    # Each call begins after the one before it has begun; from there on they may go on in any order.
    deltas: list[CallDelta] = []
    begun = 0
    while any(streams):
        live = [at for at, stream in enumerate(streams) if stream and at <= begun]
        at = data.draw(st.sampled_from(live))
        begun = max(begun, at + 1)
        deltas.append(streams[at].pop(0))

    calls = assemble(*deltas)

    assert [(call.name, json.loads(call.arguments)) for call in calls] == wanted
