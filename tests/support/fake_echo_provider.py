"""A fake tool provider, and a server that embeds it, as any program may.

Run as a program it is `antwort serve` with an `EchoProvider` beside the configured tools.
The provider answers `file_search` with its query, or fails in the way that the query names.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click
from fixtures_turn import EchoCall
from prometheus_client import Counter
from prometheus_client.registry import Collector

from antwort.api.ids import new_id
from antwort.api.items import Annotation, FileCitation
from antwort.api.tools import FileSearchTool, ToolDeclaration
from antwort.config import load
from antwort.engine.ports import (
    FunctionSpec,
    HostedCall,
    PreparedTool,
    Progress,
    TextAnnotator,
    ToolContext,
    ToolDefaults,
    ToolDone,
    WholeTextAnnotator,
)
from antwort.http.server import run
from antwort.telemetry import configure_logging

CITED = "[1]"
RUNS = "echo_runs"
"""A file in the directory of the server: the queries that begin with `log`, one line for each run."""
PREPARED = Path("echo_prepared")
"""A file in the directory of the server, which exists when a store called `vs_crash` was prepared."""


class RealEchoCall(EchoCall):
    """An echo with results, and with citations where the answer marks them."""

    def __init__(self, key: str | None = None) -> None:
        super().__init__(new_id("fs_"))
        self._query: str = ""
        self._key = key

    @property
    def serial_key(self) -> str | None:
        return self._key

    async def run(self) -> AsyncIterator[Progress | ToolDone]:
        self._query = str(json.loads(self._arguments or "{}").get("query", ""))
        yield Progress("response.file_search_call.searching")
        if self._query.startswith("log "):
            _log_run(self._query)
        match self._query:
            case "raise":
                raise RuntimeError("a secret of the tool's")
            case "end":
                return
            case "wait":
                await asyncio.sleep(600)
        yield Progress("response.file_search_call.completed")
        yield ToolDone(self._done(), f"echo {self._query}")

    def cited(self, text: str) -> list[Annotation]:
        return [FileCitation("file-1", f"{self._query}.txt", text.index(CITED))] if CITED in text else []

    def _done(self) -> dict[str, Any]:
        found = [{"file_id": "file-1", "filename": f"{self._query}.txt", "score": 1.0, "text": self._query}]
        return {**self.item, "status": "completed", "queries": [self._query], "results": found}


class PreparedEcho(ToolDefaults):
    """The calls of one response."""

    reads_files = False
    specs = (
        FunctionSpec(
            "file_search",
            "Search in files.",
            {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
        ),
    )

    def __init__(self, tool: FileSearchTool) -> None:
        self._tool = tool
        self._calls: list[RealEchoCall] = []

    async def open(self, name: str, call_id: str, arguments: str) -> HostedCall:
        if "vs_broken" in self._tool.vector_store_ids:
            raise RuntimeError("a secret of the provider's")
        self._calls.append(RealEchoCall("shared" if "vs_shared" in self._tool.vector_store_ids else None))
        return self._calls[-1]

    def annotator(self) -> TextAnnotator:
        return WholeTextAnnotator(lambda text: [annotation for call in self._calls for annotation in call.cited(text)])

    def lease(self) -> AbstractContextManager[object]:
        return nullcontext()


class EchoProvider:
    """Runs `file_search`. A store called `vs_broken` cannot be opened, one called `vs_unprepared` not be prepared.

    With one called `vs_shared` calls run one after another. One called `vs_crash` ends the process when it is prepared
    in a directory for the second time.
    """

    tools: Sequence[str] = ("file_search",)

    def __init__(self) -> None:
        self._prepared = Counter("echo_prepared", "Echoes that were prepared.", registry=None)

    @property
    def name(self) -> str:
        return "echo"

    async def prepare(self, tool: ToolDeclaration, param: str, context: ToolContext) -> PreparedTool:
        assert isinstance(tool, FileSearchTool)
        if "vs_unprepared" in tool.vector_store_ids:
            raise RuntimeError("a secret of the provider's")
        if "vs_crash" in tool.vector_store_ids:
            _crash_if_prepared()
        self._prepared.inc()
        return PreparedEcho(tool)

    def routes(self) -> Sequence[Any]:
        return []

    def metrics(self) -> Sequence[Collector]:
        return [self._prepared]

    async def aclose(self) -> None:
        pass


def _crash_if_prepared() -> None:
    if PREPARED.exists():
        os._exit(9)
    PREPARED.touch()


def _log_run(query: str) -> None:
    with Path(RUNS).open("a", encoding="utf-8") as runs:
        runs.write(f"{query}\n")


def main() -> None:
    config = load(Path("antwort.yaml"), os.environ)
    configure_logging(config.log.level, config.log.format)
    run(config, os.environ, click.echo, extra_providers=[EchoProvider()])


if __name__ == "__main__":
    main()
