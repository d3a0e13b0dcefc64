from __future__ import annotations

from typing import Any

import pytest

from weakincentives.adapters.openai import (
    AutoContainerConfig,
    CodeInterpreterCall,
    CodeInterpreterConfig,
    CodeInterpreterResult,
    ContainerFile,
    ExistingContainerRef,
    OpenAICodeInterpreterSection,
)
from weakincentives.adapters.openai.native_tools.capability import ProviderRan, ResponseContext, ToolConfigError
from weakincentives.adapters.openai.native_tools.code_interpreter_section import CAPABILITY, ends_in_traceback
from weakincentives.errors import PromptValidationError

ITEM = {
    "id": "ci_1",
    "type": "code_interpreter_call",
    "status": "completed",
    "code": "1 + 1",
    "container_id": "cntr_1",
    "outputs": [{"type": "logs", "logs": "2"}, {"type": "image", "url": "data:,x"}, {"type": "logs", "logs": "3"}],
}


def read(item: dict, scene: ResponseContext | None = None) -> Any:
    reading = CAPABILITY.parse_call(item, scene or ResponseContext(), None)
    assert isinstance(reading, ProviderRan)
    return reading


def test_call_has_code_output_and_files():
    file = ContainerFile("cntr_1", "cfile_1", "a.txt")
    ran = read(ITEM, ResponseContext(files={"ci_1": (file,)}))

    assert ran.params == CodeInterpreterCall("1 + 1", "cntr_1")
    assert ran.result.value == CodeInterpreterResult(
        "1 + 1", "2\n3", ("data:,x",), (file,), "cntr_1", "completed", None, None, None
    )
    assert (ran.result.message, ran.result.success, ran.result.render()) == ("2\n3", True, "2\n3")


def test_stdout_stderr_and_exit_code_of_antwort():
    result = {"stdout": "2\n", "stderr": "warning\n", "exit_code": 1}
    ran = read({**ITEM, "antwort:result": result})

    assert (ran.result.value.stdout, ran.result.value.stderr, ran.result.value.exit_code) == ("2\n", "warning\n", 1)
    assert not ran.result.success


def test_missing_outputs_are_empty():
    ran = read({**ITEM, "outputs": None})

    assert (ran.result.message, ran.result.success, ran.result.render()) == ("", True, "(no output)")


def test_failed_call_has_its_status():
    ran = read({**ITEM, "status": "failed", "outputs": []})

    assert ran.result.message == "code_interpreter_call failed (failed): no reason given"
    assert (ran.result.success, ran.result.value.status) == (False, "failed")
    assert not read({**ITEM, "status": "incomplete"}).result.success


PLAIN = 'Traceback (most recent call last):\n  File "<stdin>", line 1\nZeroDivisionError: division by zero'
BARE = 'hello\nTraceback (most recent call last):\n  File "a.py", line 1, in f\n    1 / 0\nAssertionError\n'
CHAINED = f"{PLAIN}\n\nDuring handling of the above exception, another exception occurred:\n\n{PLAIN}"
DOTTED = "Traceback (most recent call last):\n  File ...\npkg.errors.Custom: no"
NOTEBOOK = """\
---------------------------------------------------------------------------
NameError                                 Traceback (most recent call last)
Cell In[1], line 1
----> 1 foo

NameError: name 'foo' is not defined"""
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "x", line 1
  | ExceptionGroup: two (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | ValueError: 1
    +------------------------------------"""
SYNTAX = '  File "<stdin>", line 1\n    foo(\n       ^\nSyntaxError: incomplete input'
NOTEBOOK_SYNTAX = "  Cell In[2], line 1\n    if x\n        ^\nSyntaxError: expected ':'"


@pytest.mark.parametrize("logs", [PLAIN, BARE, CHAINED, DOTTED, NOTEBOOK, GROUP, SYNTAX, NOTEBOOK_SYNTAX])
def test_uncaught_exception_is_a_failure(logs):
    assert ends_in_traceback(logs)
    assert not read({**ITEM, "outputs": [{"type": "logs", "logs": logs}]}).result.success


@pytest.mark.parametrize(
    "logs",
    [
        "",
        "all is well",
        "Traceback (most recent call last):\n  File ...\nValueError: caught\nand we went on",
        "Traceback (most recent call last):\n  File ...\nValueError: caught\nTotal: 5",
        "Traceback (most recent call last) is what Python prints.",
        "SyntaxError: is a word that can be printed",
        "ValueError: printed by hand",
    ],
)
def test_text_about_exceptions_is_no_traceback(logs):
    assert not ends_in_traceback(logs)


@pytest.mark.parametrize(
    "container, wire",
    [
        (AutoContainerConfig(), {"type": "auto", "memory_limit": "1g"}),
        (
            AutoContainerConfig(memory_limit="64g", file_ids=("f",)),
            {"type": "auto", "memory_limit": "64g", "file_ids": ["f"]},
        ),
        ({"type": "auto"}, {"type": "auto", "memory_limit": "1g"}),
        (ExistingContainerRef("cntr_1", "4g"), "cntr_1"),
        ({"id": "cntr_1"}, "cntr_1"),
        ("cntr_1", "cntr_1"),
    ],
)
def test_declaration_always_has_a_container(container, wire):
    assert CAPABILITY.declare(CodeInterpreterConfig(container)) == {"type": "code_interpreter", "container": wire}
    assert CAPABILITY.declare({"type": "code_interpreter", "container": container}) == {
        "type": "code_interpreter",
        "container": wire,
    }


def test_wire_form_without_container_gets_auto():
    assert CAPABILITY.declare({"type": "code_interpreter", "allowed_callers": ["direct"]}) == {
        "type": "code_interpreter",
        "allowed_callers": ["direct"],
        "container": {"type": "auto", "memory_limit": "1g"},
    }


def test_declared_container_conflicts_with_a_section():
    wire = CAPABILITY.declare(CodeInterpreterConfig())
    assert wire is not None
    assert CAPABILITY.needs_container(wire)
    assert CAPABILITY.with_container(wire, "cntr_2") == {"type": "code_interpreter", "container": "cntr_2"}
    with pytest.raises(ToolConfigError, match="container is 'cntr_1', but a section of the prompt supplies one"):
        CAPABILITY.needs_container({"container": "cntr_1"})


def test_section_refuses_invalid_memory_limit():
    wrong = CodeInterpreterConfig(AutoContainerConfig(memory_limit="8g"))
    with pytest.raises(PromptValidationError, match="memory_limit must be one of 1g, 4g, 16g, 64g, not '8g'"):
        OpenAICodeInterpreterSection(default_params=wrong)
    assert OpenAICodeInterpreterSection().native_tools()[0].capability == "code_interpreter"
