from __future__ import annotations

import json

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.tools.builtins.codeinterpreter.types import SPEC, Arguments, BadArguments, read_arguments


def test_the_description_names_the_data_directory_and_persistence():
    assert SPEC.name == "code_interpreter"
    assert SPEC.description is not None
    for words in ("/mnt/data", "stay from call to call", "sandbox:/mnt/data/", "no network", "requirements"):
        assert words in SPEC.description
    assert len(SPEC.description) < 800


def test_valid_arguments_are_parsed():
    arguments = {"code": "print(1)", "requirements": ["scipy>=1.14"]}
    jsonschema.validate(arguments, SPEC.parameters or {})

    assert read_arguments(json.dumps(arguments)) == Arguments("print(1)", ("scipy>=1.14",))
    assert read_arguments('{"code": "1"}') == Arguments("1")


@given(st.text())
def test_code_round_trips(code):
    if code.strip():
        assert read_arguments(json.dumps({"code": code})).code == code.encode("utf-16", "surrogatepass").decode(
            "utf-16", "replace"
        )


@pytest.mark.parametrize(
    "slip",
    [
        '{"code": "a\nb"}',
        '{"code": "a\\nb", "requirements": null}',
        '{"code": "a\\nb", "requirements": []}',
        '{"code": "a\\nb", "x": 1}',
    ],
)
def test_unambiguous_mistakes_are_accepted(slip):
    assert read_arguments(slip) == Arguments("a\nb")


def test_a_single_requirement_may_be_a_string():
    assert read_arguments('{"code": "1", "requirements": "scipy"}').requirements == ("scipy",)
    assert read_arguments('{"code": "1", "requirements": ["", "scipy", " "]}').requirements == ("scipy",)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("", "not valid JSON"),
        ("print(1)", "not valid JSON"),
        ('{"code": "print(1)', "not valid JSON"),
        ('{"code": "print("hi")"}', "escaped"),
        ("[" * 100_000, "not valid JSON"),
        ("null", "JSON object"),
        ('"print(1)"', "JSON object"),
        ("{}", "no code"),
        ('{"code": ""}', "no code"),
        ('{"code": " \\n"}', "no code"),
        ('{"code": ["print(1)"]}', "no code"),
        ('{"code": "1", "requirements": [1]}', "package names"),
        ('{"code": "1", "requirements": {"a": 1}}', "package names"),
    ],
)
def test_invalid_arguments_tell_the_model_what_to_write(arguments, message):
    with pytest.raises(BadArguments, match=message):
        read_arguments(arguments)
