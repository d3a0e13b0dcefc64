from __future__ import annotations

import pytest

from antwort.models.scripted import script as script_module
from antwort.models.scripted.script import ScriptError, find_all, load_script, parse_script, pattern_matches


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
        ("answers: [{when: {any: /(/}, reply: []}]", r"answers\[0\].when.any is not a valid regular expression"),
        ("answers: [{reply: [{text: a}, {text: '<<find /(/>>'}]}]", r"answers\[0\].reply\[1\].text: <<find /\(/>> is"),
        ("answers: [{reply: [{refusal: '<<find a>>'}]}]", r"answers\[0\].reply\[0\].refusal: <<find needs"),
        ("answers: [{reply: [{summary: '<<find /a'}]}]", r"reply\[0\].summary: <<find needs"),
        ("answers: [{reply: [{reasoning: '<<find /a>> <<find /b/>>'}]}]", r"reply\[0\].reasoning: <<find needs"),
        (
            "answers: [{reply: [{call: {name: f, arguments: {q: [{r: '<<find /[/>>'}]}}}]}]",
            r"answers\[0\].reply\[0\].call.arguments: <<find /\[/>> is not a valid regular expression: unterminated",
        ),
        ("answers: [{reply: [{call: {name: f, arguments: '<<find>>'}}]}]", r"reply\[0\].call.arguments: <<find needs"),
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


def test_find_all_returns_distinct_whole_matches_in_order():
    assert find_all("fact-([a-z])", "Fact-B, fact-a; fact-b, fact-a and FACT-B") == "Fact-B\nfact-a\nfact-b\nFACT-B"
    assert find_all("x*", "axxbx") == "xx\nx"
    assert not find_all("y", "axxbx")
