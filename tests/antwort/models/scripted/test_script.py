from __future__ import annotations

import pytest

from antwort.models.scripted import script as the_format
from antwort.models.scripted.script import ScriptError, contains, load_script, parse_script


def test_the_example_of_the_documentation_is_a_script():
    lines = (the_format.__doc__ or "").splitlines()[2:]
    end = lines.index("The first answer that fits is given. `when` knows:")
    script = parse_script("\n".join(line[4:] for line in lines[:end]))

    assert (script.fragment, len(script.answers), script.answers[2].times) == (8, 4, 1)


def test_a_script_from_a_file(tmp_path):
    path = tmp_path / "answers.yaml"
    path.write_text("answers: [{reply: [{text: grüße}]}]", encoding="utf-8")

    assert load_script(path).answers[0].reply[0].text == "grüße"


@pytest.mark.parametrize(
    "source, where",
    [
        ("answers: [", "no YAML"),
        ("", "script"),
        ("answers: [{reply: [{text: a}], odd: 1}]", "odd"),
        ("answers: [{reply: [{text: 7}]}]", r"answers\[0\].reply\[0\].text|\$\.answers\[\.\.\.\]"),
        ("answers: [{reply: [{text: a, delay: 1}]}]", r"answers\[0\].reply\[0\]"),
        ("answers: [{reply: [{text: a}]}, {reply: [{}]}]", r"answers\[1\].reply\[0\]"),
        ("answers: [{when: {text: /(/}, reply: []}]", r"answers\[0\].when.text"),
        ("answers: [{reply: [{delay: -1}]}]", "delay"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(source, where):
    with pytest.raises(ScriptError, match=where):
        parse_script(source)


def test_patterns():
    assert contains("WORLD", "hello world")
    assert contains("/^h.*d$/", "Hello World")
    assert not contains("/^w/", "hello world")
    assert contains("/", "a/b")
