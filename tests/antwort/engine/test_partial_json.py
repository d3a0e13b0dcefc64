from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.engine.partial_json import FieldReader, FreeTextReader, ObjectScanner

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def read(text: str, cuts: list[int], field: str = "code") -> str:
    reader = FieldReader(field)
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return "".join(reader.feed(text[start:end]) for start, end in pairwise(edges))


@given(
    st.text(), st.dictionaries(st.text(max_size=4), values, max_size=4), st.lists(st.integers(0, 400)), st.booleans()
)
def test_the_value_equals_that_of_a_json_parser_for_any_split(code, others, cuts, ascii_only):
    others.pop("code", None)
    text = json.dumps({**others, "code": code, "z": {"code": "not this"}}, ensure_ascii=ascii_only)

    assert read(text, cuts) == code.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def test_text_is_returned_as_soon_as_it_arrives():
    reader = FieldReader("code")

    assert reader.feed('{"co') == ""
    assert reader.feed('de": "pri') == "pri"
    assert reader.feed("nt\\") == "nt"
    assert reader.feed('n"') == "\n"
    assert reader.feed(', "other": "x"}') == ""


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"code": 3}', '{"code": ["x"]}', '{"x": {"code": "y"}}', '["code", "y"]', "}}{{"]
)
def test_without_the_string_field_nothing_is_returned(text: str):
    assert read(text, [1, 2]) == ""


def test_invalid_escapes_are_skipped():
    assert read('{"code": "a\\uZZZZb\\qc\\ud800d"}', []) == "abc\ufffdd"


@pytest.mark.parametrize(
    "written, text",
    [
        ('{"input": "hey"}', "hey"),
        ('  {"input": "hey"}', "hey"),
        ('{"input": ""}', ""),
        ("{}", ""),
        ("", ""),
        ("  ", ""),
        ("hey", "hey"),
        (" hey", " hey"),
        ('print({"input": "x"})', 'print({"input": "x"})'),
        ("[1]", "[1]"),
        ('"hey"', "hey"),
        ('"hey" she said', '"hey" she said'),
        ("{a} and {b}", "{a} and {b}"),
        ('{"text": "hey"}', '{"text": "hey"}'),
        ('{"input": 3}', '{"input": 3}'),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 100])
def test_free_text_is_read_from_json_and_from_plain_text(written, text, size):
    reader = FreeTextReader()
    read = [reader.feed(written[at : at + size]) for at in range(0, len(written), size)]

    assert "".join([*read, reader.rest(cut=False)]) == text


def test_truncated_json_is_not_text():
    reader = FreeTextReader()

    assert (reader.feed('{"inp'), reader.rest(cut=True)) == ("", "")


# ── the end of an object ─────────────────────────────────────────────────────────────────────────────────────────────


def is_complete(*fragments: str) -> bool:
    scanner = ObjectScanner()
    for fragment in fragments:
        scanner.feed(fragment)
    return scanner.is_complete


@given(
    st.dictionaries(st.text(max_size=4), st.recursive(st.text() | st.integers(), st.lists, max_leaves=4)),
    st.booleans(),
    st.data(),
)
def test_an_object_is_complete_at_its_last_character_and_not_before(value, ascii_only, data):
    text = json.dumps(value, ensure_ascii=ascii_only)
    at = data.draw(st.integers(0, len(text)))

    assert is_complete(" ", text[:at], text[at:])
    assert is_complete(*text)
    assert not is_complete(*text[:-1])


@pytest.mark.parametrize("text", ["", " ", "[{}]", '"{}"', "print({})", "1", "{", '{"a": "}', '{"a": "\\"}'])
def test_other_text_and_partial_objects_are_not_complete(text):
    assert not is_complete(text)


def test_text_after_the_object_changes_nothing():
    assert is_complete('{"a": 1}', " ", "{", '"')
