from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.items import read
from antwort.engine.ports import CallPiece, Finished, ModelRequest, ReasoningPiece, SamplingOptions, TextPiece
from antwort.models.instrumentation import Instrumentation
from antwort.models.retry import RetryingModel
from antwort.models.scripted.model import Scripted
from antwort.models.scripted.script import parse_script
from antwort.models.stop_sequences import StopScanner
from antwort.telemetry import Metrics
from antwort.testing.model import collect, fold

TEXTS = st.text(alphabet="ab#", max_size=30)
STOPS = st.lists(st.text(alphabet="ab#", min_size=1, max_size=4), min_size=1, max_size=4)


def scan(stop, *pieces):
    """What is sent of a text, and the stop sequence that it has."""
    scanner, sent = StopScanner(stop), []
    for piece in pieces:
        sent += scanner.read(piece)
        if scanner.matched is not None:
            break
    return sent, scanner.matched


def sent_text(stop, *texts):
    sent, matched = scan(stop, *map(TextPiece, texts), Finished())
    return "".join(piece.text for piece in sent if isinstance(piece, TextPiece)), matched


def expected_text(text, stop):
    """The text before the stop sequence that is complete first; of several that end there, before the longest."""
    found = [(text.find(one) + len(one), text.find(one), one) for one in stop if one in text]
    return (text[: min(found)[1]], min(found)[2]) if found else (text, None)


@given(text=TEXTS, stop=STOPS, cuts=st.lists(st.integers(0, 30), max_size=8))
def test_the_text_ends_before_the_first_stop_sequence_however_it_is_split(text, stop, cuts):
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    parts = [text[start:end] for start, end in pairwise(edges)]

    assert sent_text(stop, *parts) == expected_text(text, stop)


def test_only_a_possible_start_of_a_stop_sequence_is_held_back():
    scanner = StopScanner(["END"])
    sent = [
        [getattr(piece, "text", None) for piece in scanner.read(TextPiece(text))]
        for text in ("one ", "two E", "N", "x", "E")
    ]

    assert sent == [["one "], ["two "], [], ["E", "N", "x"], []]


def test_a_stop_sequence_does_not_continue_behind_other_pieces():
    reasoning = ReasoningPiece("END")
    sent, matched = scan(["END"], TextPiece("E"), reasoning, TextPiece("ND"), Finished())

    assert (sent, matched) == ([TextPiece("E"), reasoning, TextPiece("ND"), Finished()], None)


def test_a_cut_piece_keeps_the_logprobs_of_its_whole_tokens():
    tokens = [{"token": token, "logprob": 0.0} for token in ("ab", "cd", "ef")]
    sent, matched = scan(["def"], TextPiece("x", ({"token": "x"},)), TextPiece("abcdef", tuple(tokens)))

    assert matched == "def"
    assert sent == [TextPiece("x", ({"token": "x"},)), TextPiece("abc", (tokens[0],))]


def ended_by(pieces) -> str | None:
    """The stop sequence of the last piece."""
    return pieces[-1].stop_sequence


def make_model(script):
    instrumentation = Instrumentation(Metrics(), name="m", kind="scripted")
    return RetryingModel(Scripted(parse_script(script)), instrumentation=instrumentation)


@pytest.mark.anyio
async def test_a_model_of_the_registry_stops_at_a_stop_sequence():
    model = make_model("{fragment: 3, answers: [{reply: [{text: one END two}, {fault: {}}]}]}")
    hello = [read({"role": "user", "content": "Hi"})]
    pieces = await collect(model, ModelRequest(model="m", items=hello, sampling=SamplingOptions(stop=("END",))))
    answer = fold(pieces)

    assert (answer.text, answer.reason) == ("one ", "stop")
    assert ended_by(pieces) == "END"
    assert 0 < answer.usage.output_tokens < answer.usage.total_tokens


@pytest.mark.anyio
async def test_calls_before_the_stop_sequence_are_kept():
    model = make_model("{answers: [{reply: [{call: {name: f}}, {text: END}, {fault: {}}]}]}")
    pieces = await collect(model, ModelRequest(model="m", items=[], sampling=SamplingOptions(stop=("END",))))

    assert isinstance(pieces[0], CallPiece)
    assert (fold(pieces).reason, ended_by(pieces)) == ("calls", "END")


@pytest.mark.anyio
async def test_a_reply_without_a_stop_sequence_is_unchanged():
    model = make_model("{fragment: 2, answers: [{reply: [{text: EN EN}], usage: {output_tokens: 9}}]}")
    pieces = await collect(model, ModelRequest(model="m", items=[], sampling=SamplingOptions(stop=("END",))))
    answer = fold(pieces)

    assert (answer.text, answer.usage.output_tokens, ended_by(pieces)) == ("EN EN", 9, None)
