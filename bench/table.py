"""Formats the results as a table and as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict

from measurements import Measurement, Row, Suite
from rich.console import Console
from rich.markup import escape
from rich.table import Table

WIDTH = 132  # if the output is not a terminal
MILLISECOND = 1e-3


def show(suites: Mapping[str, Suite]) -> None:
    """Print the table and the notes of all suites."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    table = Table(title=f"weakincentives and antwort, with peers ({describe_machine()})", title_justify="left")
    table.add_column("benchmark", no_wrap=True)
    table.add_column("p50 (best)", justify="right", no_wrap=True)
    table.add_column("target", justify="right", no_wrap=True)
    table.add_column("peers: p50 (best)", justify="right")
    table.add_column("ratio", justify="right", no_wrap=True)
    for suite in suites.values():
        for row in suite.rows:
            first, *others = format_peers(row) or [("", "")]
            table.add_row(row.name, format_measurement(row.measured), format_target(row), *first)
            for other in others:
                table.add_row("", "", "", *other)
        table.add_section()
    console.print(table)
    for note in (note for suite in suites.values() for note in suite.notes):
        console.print(f"· {note}", highlight=False, markup=False)
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    console.print(f"· Load average of the machine (1, 5 and 15 minutes): {load}", highlight=False)


def dump(suites: Mapping[str, Suite]) -> str:
    """All results as JSON."""
    content = {
        "machine": describe_machine(),
        "suites": {
            name: {"rows": [as_json(row) for row in suite.rows], "notes": suite.notes} for name, suite in suites.items()
        },
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def as_json(row: Row) -> dict[str, object]:
    """A row with its derived values."""
    return {**asdict(row), "met": row.met, "peer_ratios": {peer: row.ratio(peer) for peer in row.peers}}


def describe_machine() -> str:
    """Cores and Python version."""
    return f"{len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}"


def format_measurement(measured: Measurement) -> str:
    """Median and best value."""
    return f"{format_value(measured.p50, measured)} ({format_value(measured.best, measured)})"


def format_value(value: float, measured: Measurement) -> str:
    """A value with a readable unit."""
    if measured.unit == "x":
        return f"{value:.2f}x"
    if measured.unit == "/s":
        return f"{value:,.0f}/s"
    if measured.unit == "MB":
        return f"{value:.3g} MB" if value >= 1 else f"{value * 1024:.3g} kB"
    return f"{value:.2f} s" if value >= 1 else f"{value / MILLISECOND:.3g} ms"


def format_target(row: Row) -> str:
    """The target, and whether it is met."""
    if row.target is None:
        return ""
    return f"≤ {format_value(row.target, row.measured)} {'[green]met[/]' if row.met else '[red]missed[/]'}"


def format_peers(row: Row) -> list[tuple[str, str]]:
    """The value of each peer, and its ratio."""
    return [(format_peer(name, value), format_ratio(row.ratio(name))) for name, value in row.peers.items()]


def format_peer(name: str, value: Measurement | str) -> str:
    """The measurement of a peer, or the reason why there is none."""
    return f"{name} {format_measurement(value) if isinstance(value, Measurement) else escape(value)}"


def format_ratio(ratio: float | None) -> str:
    """A ratio, or an empty string."""
    return "" if ratio is None else f"{ratio:.3g}x"
