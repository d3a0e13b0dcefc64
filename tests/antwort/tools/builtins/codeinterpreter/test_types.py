from __future__ import annotations

import json

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.tools.builtins.codeinterpreter.types import SPEC, Arguments, BadArguments, read_arguments


def test_the_function_says_where_files_are_and_that_state_stays():
    assert SPEC.name == "code_interpreter"
    assert SPEC.description is not None
    for told in ("/mnt/data", "stay from call to call", "sandbox:/mnt/data/", "no network", "requirements"):
        assert told in SPEC.description
    assert len(SPEC.description) < 800


def test_what_the_schema_allows_is_read():
    written = {"code": "print(1)", "requirements": ["scipy>=1.14"]}
    jsonschema.validate(written, SPEC.parameters or {})

    assert read_arguments(json.dumps(written)) == Arguments("print(1)", ("scipy>=1.14",))
    assert read_arguments('{"code": "1"}') == Arguments("1")


@given(st.text())
def test_code_comes_out_as_it_went_in(code):
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
def test_slips_that_can_only_mean_one_thing_are_taken(slip):
    assert read_arguments(slip) == Arguments("a\nb")


def test_one_requirement_need_not_be_a_list():
    assert read_arguments('{"code": "1", "requirements": "scipy"}').requirements == ("scipy",)
    assert read_arguments('{"code": "1", "requirements": ["", "scipy", " "]}').requirements == ("scipy",)


@pytest.mark.parametrize(
    "written, says",
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
def test_what_cannot_be_run_tells_the_model_what_to_write(written, says):
    with pytest.raises(BadArguments, match=says):
        read_arguments(written)
