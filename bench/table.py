"""The one table that a run prints, and the same as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict

from readings import Reading, Row, Suite
from rich.console import Console
from rich.markup import escape
from rich.table import Table

WIDTH = 132  # where the output is no terminal
MILLISECOND = 1e-3


def show(suites: Mapping[str, Suite]) -> None:
    """Print everything as one table, its notes below."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    table = Table(title=f"weakincentives, and peers beside it ({machine()})", title_justify="left")
    table.add_column("what", no_wrap=True)
    table.add_column("ours: p50 (best)", justify="right", no_wrap=True)
    table.add_column("target", justify="right", no_wrap=True)
    table.add_column("peers: p50 (best)", justify="right")
    table.add_column("peer ÷ ours", justify="right", no_wrap=True)
    for suite in suites.values():
        for row in suite.rows:
            first, *others = peers(row) or [("", "")]
            table.add_row(row.name, reading(row.ours), target(row), *first)
            for other in others:
                table.add_row("", "", "", *other)
        table.add_section()
    console.print(table)
    for note in (note for suite in suites.values() for note in suite.notes):
        console.print(f"· {note}", highlight=False, markup=False)
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    console.print(f"· Load of the machine, over the last 1, 5 and 15 minutes: {load}", highlight=False)


def dump(suites: Mapping[str, Suite]) -> str:
    """Everything as JSON."""
    content = {
        "machine": machine(),
        "suites": {
            name: {"rows": [as_json(row) for row in suite.rows], "notes": suite.notes} for name, suite in suites.items()
        },
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def as_json(row: Row) -> dict[str, object]:
    """A row, and what follows from it."""
    return {**asdict(row), "met": row.met, "peers_by_ours": {peer: row.ratio(peer) for peer in row.peers}}


def machine() -> str:
    """In general words."""
    return f"{len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}"


def reading(measured: Reading) -> str:
    """The middle, and the best."""
    return f"{quantity(measured.p50, measured)} ({quantity(measured.least, measured)})"


def quantity(value: float, measured: Reading) -> str:
    """A number that a person reads at once."""
    if measured.unit == "x":
        return f"{value:.2f}x"
    if measured.unit == "/s":
        return f"{value:,.0f}/s"
    if measured.unit == "MB":
        return f"{value:.3g} MB" if value >= 1 else f"{value * 1024:.3g} kB"
    return f"{value:.2f} s" if value >= 1 else f"{value / MILLISECOND:.3g} ms"


def target(row: Row) -> str:
    """What the design asks for, and whether we are there."""
    if row.target is None:
        return ""
    return f"≤ {quantity(row.target, row.ours)} {'[green]met[/]' if row.met else '[red]missed[/]'}"


def peers(row: Row) -> list[tuple[str, str]]:
    """What each peer takes, and how many times ours that is."""
    return [(peer(name, theirs), times(row.ratio(name))) for name, theirs in row.peers.items()]


def peer(name: str, theirs: Reading | str) -> str:
    """A peer's reading, or its reason for having none."""
    return f"{name} {reading(theirs) if isinstance(theirs, Reading) else escape(theirs)}"


def times(ratio: float | None) -> str:
    """A ratio, or nothing."""
    return "" if ratio is None else f"{ratio:.3g}x"
