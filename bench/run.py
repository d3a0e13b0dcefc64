"""Runs the benchmarks of this project and of its peers, and prints one table.

    make bench                                  installs the peers and runs all suites
    make bench BENCH_ARGS="--only events"       runs one suite

A missed target is marked in the table and does not fail the run, because timings on a shared machine
vary. The ratio to the peers of the same run is more reliable.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import adapter_calls
import code_calls
import compaction
import events
import hosted_tools
import imports
import kubernetes
import postgres
import rendering
import sandbox
import server
import storage
import table
import tool_calls
import workspaces
from measurements import Suite

SUITES: dict[str, Callable[[], Suite]] = {
    "imports": imports.suite,
    "rendering": rendering.suite,
    "events": events.suite,
    "tool-calls": tool_calls.suite,
    "adapter": adapter_calls.suite,
    "sandbox": sandbox.suite,
    "storage": storage.suite,
    "server": server.suite,
    "postgres": postgres.suite,
    "code": code_calls.suite,
    "kubernetes": kubernetes.suite,
    "tools": hosted_tools.suite,
    "compaction": compaction.suite,
    "workspaces": workspaces.suite,
}
"""All suites, in the order of the table. To add one, create a module with `suite()` and add a line here."""


def main() -> None:
    """Run the selected suites."""
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
    command = argparse.ArgumentParser(
        description="Run the benchmarks of weakincentives and antwort, and of their peers."
    )
    command.add_argument("--only", metavar="NAME", action="append", choices=SUITES, help=f"one of {', '.join(SUITES)}")
    command.add_argument("--json", metavar="FILE", type=Path, help="also write the results to this file")
    return command


if __name__ == "__main__":
    main()
