"""Report of a run: a table of tools and behaviours, one of the endpoints, the failures, and the same as JSON."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from antwort.conformance.checks import Outcome, Verdict
from antwort.conformance.client import Json
from antwort.conformance.tools import BEHAVIOURS, CASES

_CELLS: Final = {
    Verdict.PASSED: "[green]ok[/]",
    Verdict.FAILED: "[bold red]FAIL[/]",
    Verdict.UNSUPPORTED: "[yellow]n/s[/]",
    Verdict.INCONCLUSIVE: "[yellow]?[/]",
    Verdict.SKIPPED: "[dim]skip[/]",
}
_LEGEND: Final = "n/s: not supported by the server   ?: inconclusive   skip: not run   empty: does not apply"
_MAX_RECEIVED: Final = 1200


def print_report(console: Console, outcomes: Sequence[Outcome], requests: int, seconds: float) -> None:
    """Print the tables, then what did not pass, then the totals."""
    by_area: defaultdict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_area[outcome.area].append(outcome)
    tools = [case.name for case in CASES if case.name in by_area]
    for columns in _column_groups(console, tools):
        console.print(_tool_table(columns, tools, by_area))
    endpoints = [area for area in by_area if area not in tools]
    if endpoints:
        console.print(_endpoint_table(endpoints, by_area))
    console.print(f"[dim]{_LEGEND}[/]\n")
    for outcome in outcomes:
        if outcome.verdict is Verdict.FAILED:
            _print_failure(console, outcome)
    _print_reasons(console, outcomes)
    counts = Counter(outcome.verdict for outcome in outcomes)
    totals = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])
    console.print(f"{totals or 'no check'} · {requests} requests · {seconds:.1f} s")


def _column_groups(console: Console, tools: Sequence[str]) -> list[list[str]]:
    """The behaviours in as many tables as the width of the terminal needs."""
    if not tools:
        return []
    groups: list[list[str]] = [[]]
    free = console.width - max(map(len, tools)) - 1
    used = 0
    for name in BEHAVIOURS:
        width = max(4, *map(len, name.split("-"))) + 1
        if used + width > free and groups[-1]:
            groups.append([])
            used = 0
        groups[-1].append(name)
        used += width
    return groups


def _tool_table(columns: Sequence[str], tools: Sequence[str], by_area: dict[str, list[Outcome]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("tool", no_wrap=True)
    for name in columns:
        table.add_column(name.replace("-", "-\n"), no_wrap=True)
    for tool in tools:
        cells = {outcome.behaviour: _CELLS[outcome.verdict] for outcome in by_area[tool]}
        table.add_row(tool, *(cells.get(name, "") for name in columns))
    return table


def _endpoint_table(endpoints: Sequence[str], by_area: dict[str, list[Outcome]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(1, 1, 0, 0), header_style="bold")
    table.add_column("endpoints", no_wrap=True)
    table.add_column("behaviours")
    for area in endpoints:
        cells = (f"{outcome.behaviour} {_CELLS[outcome.verdict]}" for outcome in by_area[area])
        table.add_row(area, " · ".join(cells))
    return table


def _print_failure(console: Console, outcome: Outcome) -> None:
    console.print(f"[bold red]FAILED[/] {outcome.area}: {outcome.behaviour}")
    lines = [("expected", outcome.expected), ("received", _shortened(outcome.received))]
    if outcome.request is not None:
        lines.append(("repeat", outcome.request.as_curl()))
    for name, text in lines:
        console.print(f"  [dim]{name:9}[/]{escape(printable(text))}", soft_wrap=True, highlight=False)
    console.print()


def _print_reasons(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Why checks did not run, each reason once for each area."""
    reasons: defaultdict[tuple[str, Verdict, str], list[str]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.verdict not in (Verdict.PASSED, Verdict.FAILED):
            reasons[outcome.area, outcome.verdict, outcome.reason].append(outcome.behaviour)
    for (area, verdict, reason), behaviours in reasons.items():
        names = ", ".join(behaviours) if len(behaviours) < len(BEHAVIOURS) // 2 else f"{len(behaviours)} checks"
        console.print(f"{verdict}: {area} ({names}): {escape(printable(reason))}", soft_wrap=True, highlight=False)
    if reasons:
        console.print()


def printable(text: str) -> str:
    """A text of the server without control characters, which a terminal would interpret."""
    return "".join(one if one.isprintable() or one == "\n" else "�" for one in text)


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_RECEIVED else f"{text[:_MAX_RECEIVED]}…"


def write_json(path: Path, url: str, model: str, outcomes: Sequence[Outcome], requests: int) -> None:
    """Write the outcomes as JSON. It contains no key."""
    document = {"url": url, "model": model, "requests": requests, "outcomes": [_as_json(one) for one in outcomes]}
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8", errors="backslashreplace")  # unpaired surrogates become JSON's escapes


def _as_json(outcome: Outcome) -> Json:
    shown: Json = {"area": outcome.area, "behaviour": outcome.behaviour, "verdict": str(outcome.verdict)}
    for name in ("reason", "expected", "received"):
        if value := getattr(outcome, name):
            shown[name] = value
    if outcome.request is not None:
        request = outcome.request
        shown["request"] = {"method": request.method, "url": request.url, "body": request.body}
    return shown
