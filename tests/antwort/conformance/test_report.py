"""The report on terminals of any width, and its JSON form."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from antwort.conformance.checks import Outcome, Verdict
from antwort.conformance.client import Exchange
from antwort.conformance.report import print_report, write_json
from antwort.conformance.tools import BEHAVIOURS, CASES

PASSED = [Outcome(case.name, behaviour, Verdict.PASSED) for case in CASES for behaviour in BEHAVIOURS]
REQUEST = Exchange("POST", "http://127.0.0.1/v1/responses", {"input": "[bold]hello[/]"})
FAILED = Outcome("text", "item", Verdict.FAILED, "expected a; received b", "a\x1b[2J", "[red]b[/]", REQUEST)


def printed(outcomes: list[Outcome], width: int) -> str:
    file = io.StringIO()
    print_report(Console(file=file, width=width, highlight=False), outcomes, 7, 1.25)
    return file.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 132, 200])
def test_the_table_is_divided_to_the_width_and_loses_no_behaviour(width):
    text = printed(PASSED, width).partition("n/s:")[0]

    assert max(map(len, text.splitlines())) <= width
    assert text.count("ok") == len(PASSED)
    for behaviour in BEHAVIOURS:
        assert all(word in text for word in behaviour.split("-"))


def test_texts_of_the_server_are_no_markup_and_no_control_characters():
    text = printed([FAILED], 80)

    assert "[red]b[/]" in text
    assert "[bold]hello[/]" in text
    assert "\x1b" not in text
    assert "1 failed · 7 requests · 1.2 s" in text


def test_a_reason_is_printed_once_for_an_area():
    refused = [Outcome("shell", behaviour, Verdict.UNSUPPORTED, "no shell") for behaviour in BEHAVIOURS]
    one = Outcome("containers", "expired", Verdict.SKIPPED, "it takes a minute")
    text = printed([*refused, one], 200)

    assert text.count("no shell") == 1
    assert f"not supported: shell ({len(BEHAVIOURS)} checks): no shell" in text
    assert "skipped: containers (expired): it takes a minute" in text


def test_no_outcome_is_no_error():
    assert "no check" in printed([], 80)


def test_the_json_form_has_the_whole_request(tmp_path):
    write_json(tmp_path / "outcomes.json", "http://127.0.0.1/v1", "small", [FAILED, PASSED[0]], 7)
    document = json.loads((tmp_path / "outcomes.json").read_text(encoding="utf-8"))

    assert (document["url"], document["model"], document["requests"]) == ("http://127.0.0.1/v1", "small", 7)
    failed, passed = document["outcomes"]
    assert failed["request"] == {"method": "POST", "url": REQUEST.url, "body": REQUEST.body}
    assert passed == {"area": PASSED[0].area, "behaviour": PASSED[0].behaviour, "verdict": "passed"}
