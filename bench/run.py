"""Measure us, and our peers beside us, and print one table.

    make bench                                  the way to run it: sets up both environments first
    make bench BENCH_ARGS="--only events"       some suites only

A missed target is marked in the table and does not fail the run: machines are noisy, and
what counts is the ratio to the peers that were measured beside us.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import adapter_calls
import code_calls
import events
import imports
import rendering
import sandbox
import server
import storage
import table
import tool_calls
import workspaces
from readings import Suite

SUITES: dict[str, Callable[[], Suite]] = {
    "imports": imports.suite,
    "rendering": rendering.suite,
    "events": events.suite,
    "tool-calls": tool_calls.suite,
    "adapter": adapter_calls.suite,
    "sandbox": sandbox.suite,
    "storage": storage.suite,
    "server": server.suite,
    "code": code_calls.suite,
    "workspaces": workspaces.suite,
}
"""Every suite, in the order of the table. A new one is a module beside this file, and a line here."""


def main() -> None:
    """Run the suites that were asked for."""
    arguments = parser().parse_args()
    measured: dict[str, Suite] = {}
    for name in arguments.only or SUITES:
        print(f"measuring {name} …", file=sys.stderr)
        measured[name] = SUITES[name]()
    table.show(measured)
    if arguments.json:
        arguments.json.write_text(table.dump(measured), encoding="utf-8")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    command = argparse.ArgumentParser(description="Measure weakincentives, and its peers beside it.")
    command.add_argument("--only", metavar="NAME", action="append", choices=SUITES, help=f"one of {', '.join(SUITES)}")
    command.add_argument("--json", metavar="FILE", type=Path, help="also write everything to this file")
    return command


if __name__ == "__main__":
    main()
