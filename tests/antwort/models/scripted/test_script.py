from __future__ import annotations

import pytest

from antwort.models.scripted import script as script_module
from antwort.models.scripted.script import ScriptError, load_script, parse_script, pattern_matches


def test_the_example_of_the_docstring_is_valid():
    lines = (script_module.__doc__ or "").splitlines()[2:]
    end = lines.index("The first answer that matches is given. Keys of `when`:")
    script = parse_script("\n".join(line[4:] for line in lines[:end]))

    assert (script.fragment, len(script.answers), script.answers[2].times) == (8, 4, 1)


def test_load_script(tmp_path):
    path = tmp_path / "answers.yaml"
    path.write_text("answers: [{reply: [{text: grüße}]}]", encoding="utf-8")

    assert load_script(path).answers[0].reply[0].text == "grüße"


@pytest.mark.parametrize(
    "source, message",
    [
        ("answers: [", "not valid YAML"),
        ("", "script"),
        ("answers: [{reply: [{text: a}], odd: 1}]", "odd"),
        ("answers: [{reply: [{text: 7}]}]", r"answers\[0\].reply\[0\].text|\$\.answers\[\.\.\.\]"),
        ("answers: [{reply: [{text: a, delay: 1}]}]", r"answers\[0\].reply\[0\]"),
        ("answers: [{reply: [{text: a}]}, {reply: [{}]}]", r"answers\[1\].reply\[0\]"),
        ("answers: [{when: {text: /(/}, reply: []}]", r"answers\[0\].when.text"),
        ("answers: [{reply: [{delay: -1}]}]", "delay"),
    ],
)
def test_errors_contain_the_position(source, message):
    with pytest.raises(ScriptError, match=message):
        parse_script(source)


def test_pattern_matches():
    assert pattern_matches("WORLD", "hello world")
    assert pattern_matches("/^h.*d$/", "Hello World")
    assert not pattern_matches("/^w/", "hello world")
    assert pattern_matches("/", "a/b")
