from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Generic, Literal, TypeVar
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.errors import ContractError, ParseError, SerdeError
from weakincentives.serde import dump, dump_json, parse, parse_json, parse_strict

T = TypeVar("T")


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: list[T]
    total: int = 0


@dataclass(frozen=True)
class IntegerPage(Page[int]):
    note: str = ""


@dataclass(frozen=True)
class Tree:
    name: str
    kids: tuple[Tree, ...] = ()
    twin: Tree | None = None


@dataclass(kw_only=True)
class Item:
    name: str
    color: Color = Color.RED


@dataclass
class Order:
    number: int
    share: float
    note: str | None
    kind: Literal["big", "small", 3]
    placed: datetime
    due: date
    took: timedelta
    key: UUID
    price: Decimal
    blob: bytes
    items: list[Item]
    tags: set[str]
    pages: Page[Item]
    tree: Tree
    extra: dict[str, int] = field(default_factory=dict[str, int])
    either: int | str | None = None


@dataclass
class Count:
    n: int


@dataclass
class Ratio:
    n: float


@dataclass
class Words:
    text: str = ""


@dataclass
class Loose:
    what: Any = None


trees = st.recursive(
    st.builds(Tree, st.text()),
    lambda inner: st.builds(Tree, st.text(), st.lists(inner, max_size=3).map(tuple), st.none() | inner),
    max_leaves=8,
)
items = st.builds(Item, name=st.text(), color=st.sampled_from(Color))
numbers = st.floats(allow_nan=False, allow_infinity=False)
orders = st.builds(
    Order,
    number=st.integers(),
    share=numbers,
    note=st.none() | st.text(),
    kind=st.sampled_from(["big", "small", 3]),
    placed=st.datetimes(timezones=st.just(UTC)),
    due=st.dates(),
    took=st.timedeltas(timedelta(days=-1000), timedelta(days=1000)),
    key=st.uuids(),
    price=st.decimals(allow_nan=False, allow_infinity=False),
    blob=st.binary(),
    items=st.lists(items, max_size=3),
    tags=st.sets(st.text(), max_size=3),
    pages=st.builds(Page, st.lists(items, max_size=3), st.integers()),
    tree=trees,
    extra=st.dictionaries(st.text(), st.integers(), max_size=3),
    either=st.none() | st.integers() | st.text(),
)


# ── Round trips ───────────────────────────────────────────────────────────────────────────────────────────────────────


@given(orders)
def test_dump_and_parse_round_trip(order):
    assert parse(dump(order), Order) == order
    assert parse_json(dump_json(order), Order) == order


@given(orders)
def test_dump_json_is_one_line(order):
    text = dump_json(order)

    assert "\n" not in text
    assert json.loads(text) == json.loads(json.dumps(dump(order)))


@given(orders)
def test_parse_strict_round_trip(order):
    assert parse_strict(dump_json(order), Order) == order


def test_parse_of_a_generic_frozen_dataclass_with_slots():
    assert parse_json('{"items": [1, 2], "total": 2}', Page[int]) == Page([1, 2], 2)
    assert parse_strict('{"items": ["a"], "total": null}', Page[str]) == Page(["a"], 0)
    assert parse_json('{"items": [{"items": [1]}]}', Page[Page[int]]) == Page([Page([1])])

    with pytest.raises(ParseError, match=r"Expected `int`, got `str` \(at \$\.items\[1\]\)"):
        parse_json('{"items": [1, "two"]}', Page[int])


def test_parse_of_a_subclass_of_a_generic_dataclass():
    assert parse_json('{"items": [1], "note": "n"}', IntegerPage) == IntegerPage([1], note="n")

    with pytest.raises(ParseError, match="Expected `int`"):
        parse_json('{"items": ["one"]}', IntegerPage)


def test_missing_fields_get_defaults():
    assert parse({"name": "pen"}, Item) == Item(name="pen", color=Color.RED)


# ── Invalid input ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_parse_error_has_a_path():
    with pytest.raises(ParseError, match="Expected `str`, got `int`") as caught:
        parse({"name": "a", "kids": [{"name": "b", "twin": {"name": 7}}]}, Tree)

    assert caught.value.path == "$.kids[0].twin.name"
    assert "(at $.kids[0].twin.name)" in str(caught.value)


def test_missing_field_is_named():
    with pytest.raises(ParseError, match="missing required field `name`") as caught:
        parse_json("{}", Tree)

    assert caught.value.path == "$"


def test_unknown_keys_are_ignored_except_by_parse_strict():
    assert parse_json('{"n": 1, "more": 2}', Count) == Count(1)
    assert parse_strict('{"n": 1, "more": 2}', Count, allow_extra_keys=True) == Count(1)

    with pytest.raises(ParseError, match="unknown key 'more'; known keys: n"):
        parse_strict('{"n": 1, "more": 2}', Count)


@pytest.mark.parametrize("value", ["true", '"1"', "1.5", "null", "[]", "{}"])
def test_no_coercion_to_integers(value):
    with pytest.raises(ParseError, match="Expected `int`"):
        parse_strict(f'{{"n": {value}}}', Count)


@pytest.mark.parametrize("value", ["1.0", "1e3", "-0.0"])
def test_integral_float_is_an_integer(value):
    assert parse_strict(f'{{"n": {value}}}', Count) == Count(int(float(value)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        '{"n": 1',
        '{"n": 1} and more',
        '{"n": NaN}',
        '{"n": Infinity}',
        '{"n": 1e999}',
        '{"n": ' + "9" * 5000 + "}",
        '{"n": "\\ud800"}',
        '{"n": "\ud800"}',
        b'{"n": "\xff"}',
        "\ufeff{}",
        "{'n': 1}",
        "[" * 100_000,
    ],
    ids=lambda text: repr(text[:20]),
)
@pytest.mark.parametrize("read", [parse_json, parse_strict])
def test_invalid_json_is_a_parse_error(read, text):
    with pytest.raises(ParseError, match="JSON"):
        read(text, Ratio)


def test_last_of_duplicate_keys_is_used():
    assert parse_strict('{"n": 1, "n": 2}', Count) == Count(2)


def test_big_integers_keep_all_digits():
    big = 10**300 + 7

    assert parse_json(dump_json(Count(big)), Count) == Count(big)


@pytest.mark.parametrize("depth", [300, 450, 1_000, 3_000, 20_000])
@pytest.mark.parametrize("read", [parse_json, parse_strict])
def test_deep_nesting_is_parsed_or_rejected(read, depth):
    text = '{"name": "x", "kids": [' * depth + "]}" * depth
    try:
        parsed = read(text, Tree)
    except ParseError as error:
        assert "nesting is too deep" in str(error)  # noqa: PT017 - where the limit lies is the interpreter's business
    else:
        assert parsed.name == "x"


def test_deeply_nested_data_is_rejected():
    data: dict[str, object] = {"name": "x"}
    for _ in range(100_000):
        data = {"name": "x", "twin": data}

    with pytest.raises(ParseError, match="nesting is too deep"):
        parse(data, Tree)


@dataclass
class PostInitRaises:
    n: int

    def __post_init__(self) -> None:
        refusals: dict[int, Exception] = {
            1: ValueError("no ones"),
            2: TypeError("no twos"),
            3: KeyError("no threes"),
            4: ContractError("no fours"),
            5: ZeroDivisionError("no fives"),
        }
        if self.n in refusals:
            raise refusals[self.n]


@pytest.mark.parametrize("n, why", [(1, "ones"), (2, "twos"), (3, "threes"), (4, "fours"), (5, "fives")])
def test_exception_of_post_init_is_a_parse_error(n, why):
    with pytest.raises(ParseError, match=f"no {why}") as caught:
        parse_strict(f'{{"n": {n}}}', PostInitRaises)

    assert caught.value.__cause__ is not None


# ── Unsupported types ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Pair:
    either: Tree | Item


@pytest.mark.parametrize("read", [parse_json, parse_strict])
@pytest.mark.parametrize("unreadable", [Pair, "Tree", object()], ids=["two dataclasses in a union", "text", "object"])
def test_unsupported_type_is_a_serde_error(read, unreadable):
    with pytest.raises(SerdeError, match="cannot be parsed from JSON") as caught:
        read("{}", unreadable)

    assert not isinstance(caught.value, ParseError)


def test_unresolvable_annotations_are_a_serde_error():
    @dataclass
    class Local:
        inner: Missing  # pyright: ignore[reportUndefinedVariable] # noqa: F821 - the point of the test

    for read in (parse_json, parse_strict):
        with pytest.raises(SerdeError, match=r"Local cannot be parsed .* 'Missing' is not defined"):
            read("{}", Local)


# ── Dump ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def endless() -> list[object]:
    loop: list[object] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    "value",
    [Loose(object()), {"key": {(1, 2): 3}}, endless(), Loose(ValueError("x")), Words("half a pair: \ud83d")],
    ids=["object", "tuple as key", "endless", "exception", "lone surrogate"],
)
def test_value_that_json_cannot_represent_is_an_error(value):
    with pytest.raises(SerdeError, match=f"cannot encode a {type(value).__name__} as JSON"):
        dump_json(value)


def test_fallback_converts_unsupported_values():
    assert dump_json({"what": Loose(1 + 2j)}, fallback=str) == '{"what":{"what":"(1+2j)"}}'


def test_keys_are_converted_to_strings():
    assert dump({1: "a", Color.RED: "b"}) == {"1": "a", "red": "b"}


def test_nan_is_written_as_null():
    assert dump_json(Ratio(float("nan"))) == '{"n":null}'
