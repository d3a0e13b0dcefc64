from __future__ import annotations

import pytest

from antwort.config import parse
from antwort.models.aliases import Aliases

TEXT = """\
models:
  small: {kind: scripted, script: s}
  big: {kind: scripted, script: s}
  aliases:
    z-*: small
    "*": big
    a-*: small
    gpt-4o: small
    "o[13]": small
    "x/?": small
"""


def test_exact_names_come_before_globs_and_globs_in_the_order_of_the_file():
    aliases = Aliases(parse(TEXT, {}).models.aliases)

    assert {name: aliases.resolve(name) for name in ("gpt-4o", "z-1", "a-1", "gpt-5")} == {
        "gpt-4o": "small",
        "z-1": "small",
        "a-1": "big",  # `*` stands before `a-*`
        "gpt-5": "big",
    }
    assert aliases.names() == ["gpt-4o"]


@pytest.mark.parametrize(
    "glob, matches, differs",
    [
        ("gpt-*", ("gpt-", "gpt-5", "gpt-5/x\ny"), ("GPT-5", "my-gpt-5", "gpt")),
        ("o?", ("o3",), ("o", "o13")),
        ("o[13]-*", ("o1-mini", "o3-"), ("o2-mini",)),
        ("a.b*", ("a.b", "a.bc"), ("axb",)),
        ("[", ("[",), ("x",)),
    ],
)
def test_globs(glob, matches, differs):
    aliases = Aliases({glob: "m"})

    assert [name for name in (*matches, *differs) if aliases.resolve(name)] == list(matches)
    assert aliases.names() == []


def test_many_stars_match_in_bounded_time():
    assert Aliases({"*a" * 30 + "b": "m"}).resolve("a" * 512) is None
