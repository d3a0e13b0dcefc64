from __future__ import annotations

import json

import pytest

from antwort.engine.stores import ContainerSkill
from antwort.tools.builtins.shell.types import MAX_COMMANDS, SPEC, BadCommands, CommandList, read_action, with_skills


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ({"commands": ["a", "b"]}, CommandList(("a", "b"))),
        ({"commands": "ls"}, CommandList(("ls",))),
        ({"command": "ls"}, CommandList(("ls",))),
        ({"commands": ["a"], "timeout_ms": 5, "max_output_length": 7.0}, CommandList(("a",), 7, 5)),
        ({"commands": ["a"], "timeout_ms": 0, "max_output_length": "7"}, CommandList(("a",))),
        ({"commands": ["a"], "timeout_ms": True, "max_output_length": -1}, CommandList(("a",))),
        ({"commands": ["a"], "timeout_ms": 1e300, "other": 1}, CommandList(("a",))),
        ({"commands": ["\ud800"]}, CommandList(("\ufffd",))),
    ],
)
def test_arguments(arguments, expected):
    assert read_action(json.dumps(arguments)) == expected


@pytest.mark.parametrize(
    "written",
    ["", "[", '"ls"', "{}", '{"commands": []}', '{"commands": [" "]}', '{"commands": ["a", 1]}', "[" * 100_000],
)
def test_invalid_arguments_say_what_to_write(written):
    with pytest.raises(BadCommands, match="commands"):
        read_action(written)


def test_the_number_of_commands_is_limited():
    assert len(read_action(json.dumps({"commands": ["a"] * MAX_COMMANDS})).commands) == MAX_COMMANDS
    with pytest.raises(BadCommands, match="More than"):
        read_action(json.dumps({"commands": ["a"] * (MAX_COMMANDS + 1)}))


def test_skills_are_listed_in_the_description():
    spec = with_skills(SPEC, [ContainerSkill("csv", "Reads CSV."), ContainerSkill("pdf", "Reads PDF.")])
    assert spec.description is not None
    assert spec.description.endswith("The skills:\n- csv: Reads CSV.\n- pdf: Reads PDF.")
    assert with_skills(SPEC, []) == SPEC
