"""A stage for hosted tools: a server that brings a tool of its own, as any program may that embeds it.

Run as a program it is `antwort serve` with an `EchoProvider` beside what the configuration
switches on. The provider answers `file_search` with what it was asked for, and fails in
whichever way it is asked to.
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
from antwort.engine.ports import FunctionSpec, HostedCall, Progress, ToolContext, ToolDone, Workbench
from antwort.http.server import run
from antwort.telemetry import configure_logging

CITED = "[1]"


class RealEchoCall(EchoCall):
    """An echo over the real loop, with results, and with citations where the answer marks them."""

    def __init__(self) -> None:
        super().__init__(new_id("fs_"))
        self._asked: str = ""

    async def run(self) -> AsyncIterator[Progress | ToolDone]:
        self._asked = str(json.loads(self._arguments or "{}").get("query", ""))
        yield Progress("response.file_search_call.searching")
        match self._asked:
            case "raise":
                raise RuntimeError("a secret of the tool's")
            case "end":
                return
            case "wait":
                await asyncio.sleep(600)
        yield Progress("response.file_search_call.completed")
        yield ToolDone(self._done(), f"echo {self._asked}")

    def cited(self, text: str) -> list[Annotation]:
        return [FileCitation("file-1", f"{self._asked}.txt", text.index(CITED))] if CITED in text else []

    def _done(self) -> dict[str, Any]:
        found = [{"file_id": "file-1", "filename": f"{self._asked}.txt", "score": 1.0, "text": self._asked}]
        return {**self.item, "status": "completed", "queries": [self._asked], "results": found}


class EchoBench:
    """The calls of one response."""

    takes_files = False

    def __init__(self, tool: FileSearchTool) -> None:
        self._tool = tool
        self._calls: list[RealEchoCall] = []

    def describe(self, spec: FunctionSpec) -> FunctionSpec:
        return spec

    async def open(self, name: str, call_id: str) -> HostedCall:
        if "vs_broken" in self._tool.vector_store_ids:
            raise RuntimeError("a secret of the provider's")
        self._calls.append(RealEchoCall())
        return self._calls[-1]

    def annotate(self, text: str) -> Sequence[Annotation]:
        return [annotation for call in self._calls for annotation in call.cited(text)]

    def at_work(self) -> AbstractContextManager[object]:
        return nullcontext()


class EchoProvider:
    """Offers `file_search`. A store that is called `vs_broken` cannot be opened."""

    tools: Sequence[str] = ("file_search",)

    def __init__(self) -> None:
        self._prepared = Counter("echo_prepared", "Echoes that were made ready.", registry=None)

    @property
    def name(self) -> str:
        return "echo"

    def offer(self, tool: ToolDeclaration) -> Sequence[FunctionSpec] | None:
        if not isinstance(tool, FileSearchTool):
            return None
        parameters = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
        return [FunctionSpec("file_search", "Search in files.", parameters)]

    async def prepare(self, tool: ToolDeclaration, param: str, context: ToolContext) -> Workbench:
        assert isinstance(tool, FileSearchTool)
        self._prepared.inc()
        return EchoBench(tool)

    def routes(self) -> Sequence[Any]:
        return []

    def metrics(self) -> Sequence[Collector]:
        return [self._prepared]

    async def aclose(self) -> None:
        pass


def main() -> None:
    config = load(Path("antwort.yaml"), os.environ)
    configure_logging(config.log.level, config.log.format)
    run(config, os.environ, click.echo, also=[EchoProvider()])


if __name__ == "__main__":
    main()
