from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.prompt import ToolResult


@dataclass
class Value:
    n: int = 1
    words: list[str] = field(default_factory=list[str])


@dataclass
class Rendered:
    n: int

    def render(self) -> str:
        return f"number {self.n}"


@dataclass
class CalledRender:
    render: bool = True


class Opaque:
    def __repr__(self) -> str:
        return "<opaque>"


# ── Constructors ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_constructor():
    result = ToolResult("done", Value())

    assert (result.message, result.value, result.success) == ("done", Value(), True)
    assert ToolResult(message="no", value=None, success=False).success is False


def test_ok_takes_a_value_and_an_optional_message():
    assert ToolResult.ok(Value()) == ToolResult("", Value())
    assert ToolResult.ok(Value(), message="done") == ToolResult("done", Value())


def test_error_takes_a_message_and_has_no_value():
    failed = ToolResult.error("try again")

    assert (failed.message, failed.value, failed.success) == ("try again", None, False)


def test_success_is_a_constructor_on_the_class_and_a_flag_on_instances():
    assert ToolResult.success(Value()) == ToolResult.ok(Value())
    assert ToolResult.success(Value(), message="done").message == "done"
    assert ToolResult.success(Value()).success is True
    assert ToolResult.error("no").success is False


def test_subscripted_constructor():
    assert ToolResult[Value]("m", Value()) == ToolResult("m", Value())
    assert ToolResult[None]("m", None, success=False).success is False
    assert ToolResult[Value].ok(Value()) == ToolResult.ok(Value())
    assert ToolResult[Value].error("no") == ToolResult.error("no")
    subscripted: Any = ToolResult[Value]
    assert subscripted.success(Value()) == ToolResult.ok(Value())


# ── Value semantics ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["message", "value", "success", "succeeded", "something_else"])
def test_result_is_immutable(name):
    result = ToolResult("m", 1)

    with pytest.raises(AttributeError, match=f"immutable: cannot set {name}"):
        setattr(result, name, "other")
    with pytest.raises(AttributeError, match=f"immutable: cannot delete {name}"):
        delattr(result, name)


def test_equality():
    assert ToolResult("m", Value(1)) == ToolResult("m", Value(1))
    assert ToolResult("m", Value(1)) != ToolResult("m", Value(2))
    assert ToolResult("m", None) != ToolResult("m", None, success=False)
    assert ToolResult("m", None) != "m"


def test_equal_results_have_equal_hashes():
    assert hash(ToolResult("m", Value())) == hash(ToolResult("m", Value()))
    assert len({ToolResult("m", [1]), ToolResult("m", [1])}) == 1


def test_copy_and_pickle():
    result = ToolResult[Value]("m", Value(2), success=False)

    assert copy.copy(result) == copy.deepcopy(result) == pickle.loads(pickle.dumps(result)) == result  # noqa: S301 - our own bytes


def test_repr_is_a_constructor_call():
    assert repr(ToolResult("m", 1)) == "ToolResult(message='m', value=1, success=True)"


# ── Rendering ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "result, text",
    [
        (ToolResult("done", None), "done"),
        (ToolResult.error("try again"), "try again"),
        (ToolResult.ok(None), ""),
        (ToolResult.ok("text"), "text"),
        (ToolResult("text", "text"), "text"),
        (ToolResult("found", "text"), "found\n\ntext"),
        (ToolResult("found", Value()), 'found\n\n{"n":1,"words":[]}'),
        (ToolResult.ok([Value(), 2]), '[{"n":1,"words":[]},2]'),
        (ToolResult.ok({"a": None}), '{"a":null}'),
        (ToolResult.ok(0), "0"),
        (ToolResult.ok(False), "false"),
        (ToolResult.ok(Rendered(3)), "number 3"),
        (ToolResult("one", Rendered(3)), "one\n\nnumber 3"),
        (ToolResult.ok(CalledRender()), '{"render":true}'),
        (ToolResult.ok(Opaque()), "<opaque>"),
        (ToolResult.ok([Opaque()]), "[<opaque>]"),
    ],
    ids=repr,
)
def test_render_has_message_then_value(result, text):
    assert result.render() == text


@given(st.text(st.characters()), st.text(st.characters()) | st.dictionaries(st.text(st.characters()), st.integers()))
def test_render_is_always_encodable(message, value):
    text = ToolResult(message, value).render()

    assert text.encode().decode() == text


def test_unpaired_surrogate_is_escaped():
    assert ToolResult("file-\udcff.txt", None).render() == "file-\\udcff.txt"
