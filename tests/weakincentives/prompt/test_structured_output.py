from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, TypeVar, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot
from jsonschema import Draft202012Validator

from weakincentives.errors import OutputParseError
from weakincentives.prompt import PromptTemplate, RenderedPrompt, output_schema, parse_output
from weakincentives.prompt.template import Prompt
from weakincentives.serde import dump, dump_json

T = TypeVar("T")


@dataclass
class Review:
    verdict: Annotated[str, "One word."]
    score: int | None = None
    reasons: list[str] = field(default_factory=list[str])


@dataclass
class Items:
    """Has the name of the wrapper of arrays."""

    items: list[int]


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: list[T]


@dataclass
class Free:
    by_name: dict[str, int]


def rendered(output: Any, *, allow_extra_keys: bool = False) -> RenderedPrompt[Any]:
    family = cast("Any", PromptTemplate)[output]
    return Prompt(family(ns="test", key="prompt", allow_extra_keys=allow_extra_keys)).render()


reviews = st.builds(Review, st.text(), st.none() | st.integers(-100, 100), st.lists(st.text(), max_size=3))


# ── Schema ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_dataclass_output_has_a_strict_schema():
    output = output_schema(rendered(Review))

    assert output is not None
    assert (output.name, output.strict) == ("Review", True)
    assert output.schema == snapshot(
        {
            "type": "object",
            "properties": {
                "verdict": {"description": "One word.", "type": "string"},
                "score": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                "reasons": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
            },
            "required": ["verdict", "score", "reasons"],
            "additionalProperties": False,
        }
    )


def test_list_output_is_wrapped_in_an_object():
    output = output_schema(rendered(list[Review]))

    assert output is not None
    assert (output.name, output.strict) == ("Review", True)
    assert output.schema["properties"] == {"items": {"type": "array", "items": {"$ref": "#/$defs/Review"}}}
    assert output.schema["$defs"]["Review"]["properties"]["verdict"]["description"] == "One word."


@pytest.mark.parametrize("output", [None, str])
def test_text_output_has_no_schema(output):
    assert output_schema(rendered(output)) is None


def test_schema_name_of_a_generic_output_is_valid():
    output = output_schema(rendered(list[Page[int]]))

    assert output is not None
    assert output.name == "Page"


@pytest.mark.parametrize("prompt", [rendered(Free), rendered(Review, allow_extra_keys=True)])
def test_output_without_a_strict_schema_has_a_plain_one(prompt):
    output = output_schema(prompt)

    assert output is not None
    assert output.strict is False
    assert "additionalProperties" not in output.schema


# ── Parser ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(reviews)
def test_answer_is_parsed_as_the_output_type(review):
    assert parse_output(dump_json(review), rendered(Review)) == review


@given(st.lists(reviews, max_size=3))
def test_list_is_parsed_with_or_without_the_wrapper(several):
    prompt = rendered(list[Review])

    assert parse_output(dump_json({"items": several}), prompt) == several
    assert parse_output(f" \n{dump_json(several)}", prompt) == several


@given(st.lists(reviews, max_size=3))
def test_parser_accepts_what_the_schema_allows(several):
    output = output_schema(rendered(list[Review]))

    assert output is not None
    assert Draft202012Validator(output.schema).is_valid({"items": dump(several)})


def test_output_type_with_the_name_of_the_wrapper():
    assert parse_output('{"items": [{"items": [1]}]}', rendered(list[Items])) == [Items([1])]
    assert parse_output('{"items": [1]}', rendered(Items)) == Items([1])


def test_generic_output_is_parsed():
    assert parse_output('{"items": [1]}', rendered(Page[int])) == Page([1])
    assert parse_output('[{"items": ["a"]}]', rendered(list[Page[str]])) == [Page(["a"])]


def test_null_means_the_default():
    assert parse_output('{"verdict": "good", "score": null, "reasons": null}', rendered(Review)) == Review("good")


@pytest.mark.parametrize(
    "text",
    [
        '```json\n{"verdict": "good"}\n```',
        '```\n{"verdict": "good"}\n```',
        '\n ```json\n{"verdict": "good"}\n ```\n\n',
        '```json\r\n{"verdict": "good"}\r\n```',
    ],
)
def test_code_fence_around_the_answer_is_removed(text):
    assert parse_output(text, rendered(Review)) == Review("good")


def test_code_fence_around_a_list_is_removed():
    assert parse_output('```json\n[{"verdict": "good"}]\n```', rendered(list[Review])) == [Review("good")]


def test_code_fence_inside_the_answer_is_kept():
    text = dump_json(Review("```json\n{}\n```"))

    assert parse_output(text, rendered(Review)).verdict == "```json\n{}\n```"


def test_text_output_is_returned_unchanged():
    assert parse_output("```json\n{}\n```", rendered(str)) == "```json\n{}\n```"


def test_extra_keys_are_rejected_unless_allowed():
    text = '{"verdict": "good", "mood": "bright"}'

    assert parse_output(text, rendered(Review, allow_extra_keys=True)) == Review("good")
    with pytest.raises(OutputParseError, match="the answer is not a Review: unknown key 'mood'"):
        parse_output(text, rendered(Review))


@pytest.mark.parametrize(
    "output, text, why",
    [
        (Review, "I think it is good.", "not valid JSON"),
        (Review, "", "not valid JSON"),
        (Review, '{"verdict": "good"', "not valid JSON"),
        (Review, '{"verdict": "good"} I hope!', "not valid JSON"),
        (Review, '{"verdict": NaN}', "not valid JSON"),
        (Review, "[]", "Expected `object`, got `array`"),
        (Review, "null", "Expected `object`, got `null`"),
        (Review, "{}", "missing required field `verdict`"),
        (Review, '{"verdict": 5}', r"Expected `str`, got `int` \(at \$\.verdict\)"),
        (list[Review], '{"verdict": "good"}', "unknown key 'verdict'; known keys: items"),
        (list[Review], '[{"verdict": "good"}, {}]', r"missing required field `verdict` \(at \$\.items\[1\]\)"),
        (list[Review], "[" * 100_000, "JSON"),
    ],
)
def test_parse_error_has_the_reason_and_the_raw_text(output, text, why):
    with pytest.raises(OutputParseError, match=rf"the answer is not a Review: .*{why}") as caught:
        parse_output(text, rendered(output))

    assert caught.value.raw == text


def test_parse_output_without_an_output_type_is_an_error():
    with pytest.raises(OutputParseError, match="declares no output type") as caught:
        parse_output("text", rendered(None))

    assert caught.value.raw == "text"
