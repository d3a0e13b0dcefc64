"""`antwort serve` with a hosted tool whose executions are counted outside of the server, so that they outlive it.

Each execution of `file_search` appends its query to the file `COUNTED_FILE`, in a line when it begins and when it ends.
Between them are `COUNTED_SECONDS`.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import click
from fake_echo_provider import EchoProvider, PreparedEcho, RealEchoCall

from antwort.api.tools import FileSearchTool, ToolDeclaration
from antwort.config import load
from antwort.engine.ports import HostedCall, PreparedTool, Progress, ToolContext, ToolDone
from antwort.http.server import run
from antwort.telemetry import configure_logging

SECONDS = float(os.environ.get("COUNTED_SECONDS", "0.25"))


class CountingCall(RealEchoCall):
    """An echo that takes a moment, between two lines of the file."""

    async def run(self) -> AsyncIterator[Progress | ToolDone]:
        query = json.loads(self._arguments)["query"]
        _append(f"begun {query}\n")
        await asyncio.sleep(SECONDS)
        _append(f"ended {query}\n")
        async for step in super().run():
            yield step


class PreparedCount(PreparedEcho):
    """The calls of one response."""

    async def open(self, name: str, call_id: str, arguments: str) -> HostedCall:
        del name, call_id, arguments
        return CountingCall()


class CountingProvider(EchoProvider):
    """Runs `file_search`."""

    async def prepare(self, tool: ToolDeclaration, param: str, context: ToolContext) -> PreparedTool:
        del param, context
        assert isinstance(tool, FileSearchTool)
        return PreparedCount(tool)


def _append(line: str) -> None:
    """Append a line with one system call: processes that append at once, or are killed, leave whole lines."""
    descriptor = os.open(os.environ["COUNTED_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def main() -> None:
    config = load(Path("antwort.yaml"), os.environ)
    configure_logging(config.log.level, config.log.format)
    run(config, os.environ, click.echo, extra_providers=[CountingProvider()])


if __name__ == "__main__":
    main()
