"""Have a model do the tasks, through the whole stack, and say how many it got right: `make eval`.

    make eval                                   all of them, with the model that comes along
    make eval EVAL_ARGS="--kind typed"          some of them
    make eval MODEL=…                           with another model: one that comes along, a .gguf file, or one that
                                                `antwort serve` finds (OPENAI_BASE_URL, or a server of this machine)

Everything is real: `antwort serve` in a process of its own, its jail, and the client library in front of it.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

from openai import OpenAI
from processes import serving
from rich.console import Console
from rich.table import Column, Table
from tasks.catalogue import TASKS
from tasks.task import Kind, Task, faults

from antwort.models.embedded.weights import CATALOGUE, DEFAULT_MODEL
from weakincentives import MarkdownSection, Prompt, PromptTemplate, Session
from weakincentives.adapters import PromptResponse
from weakincentives.adapters.openai import (
    OpenAIAdapter,
    OpenAIContainerWorkspaceSection,
    OpenAIHostedToolsConfig,
    OpenAIModelConfig,
)
from weakincentives.deadlines import Deadline
from weakincentives.errors import WinkError
from weakincentives.runtime import ModelResponded, ToolInvoked
from weakincentives.tools import HostMount

_EMBEDDED = "embedded"
ANTWORT = (sys.executable, "-m", "antwort")


@dataclass
class Outcome:
    """What became of a task."""

    name: str
    kind: str
    wrong: list[str] = field(default_factory=list[str])
    turns: int = 0
    failed_calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    seconds: float = 0.0
    answer: str = ""
    code: list[str] = field(default_factory=list[str])

    @property
    def right(self) -> bool:
        return not self.wrong


def main() -> None:
    """Do what the command line says."""
    asked = parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # and takes the server along
    chosen = [
        task
        for task in TASKS
        if (not asked.only or task.name in asked.only) and (not asked.kind or task.kind in asked.kind)
    ]
    console = Console()
    outcomes: list[Outcome] = []
    if asked.model in CATALOGUE and subprocess.run([*ANTWORT, "model", "pull", asked.model], check=False).returncode:
        sys.exit(1)  # it has said why
    with antwort(asked.model) as (client, model):
        console.print(f"{len(chosen)} tasks with {model}")
        for task in chosen:
            outcome = attempt(task, client, model, seconds=asked.seconds)
            outcomes.append(outcome)
            verdict = "right" if outcome.right else f"WRONG: {'; '.join(outcome.wrong)}"
            console.print(f"  {task.name:<18} {outcome.seconds:6.1f} s  {verdict}", soft_wrap=True, markup=False)
    console.print(summary(outcomes))
    if asked.json:
        asked.json.write_text(json.dumps([asdict(one) for one in outcomes], indent=1), encoding="utf-8")
    right = sum(one.right for one in outcomes)
    if right < asked.least:
        sys.exit(f"{right} of {len(outcomes)} are right, and {asked.least} were asked for")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    command = argparse.ArgumentParser(
        description="Have a model do small tasks with hosted tools, and check its answers."
    )
    command.add_argument("--model", metavar="NAME", default=DEFAULT_MODEL, help=f"the model to ask ({DEFAULT_MODEL})")
    command.add_argument(
        "--only", metavar="NAME", action="append", choices=[task.name for task in TASKS], help="this task, or these"
    )
    command.add_argument("--kind", action="append", choices=get_args(Kind), help="the tasks of this kind")
    command.add_argument("--seconds", metavar="N", type=float, default=300.0, help="the most for each answer (300)")
    command.add_argument("--least", metavar="N", type=int, default=0, help="fail where fewer are right")
    command.add_argument("--json", metavar="FILE", type=Path, help="keep what was answered here")
    return command


def attempt(task: Task, client: OpenAI, model: str, *, seconds: float) -> Outcome:
    """Ask for all of a task, and check it."""
    outcome = Outcome(task.name, task.kind)
    session = Session()
    adapter = OpenAIAdapter(
        model=model,
        model_config=OpenAIModelConfig(temperature=0.0),
        client=client,
        hosted_tools=OpenAIHostedToolsConfig(code_interpreter=True),
    )
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="antwort-task-") as directory:
        for name, content in task.files.items():
            Path(directory, name).write_bytes(content.encode() if isinstance(content, str) else content)
        mounts = (HostMount(directory, mount_path="."),) if task.files else ()
        workspace = OpenAIContainerWorkspaceSection(
            session=session, mounts=mounts, allowed_host_roots=(directory,), client=client
        )
        try:
            with workspace:
                response = _ask(task, adapter, workspace, session, seconds)
                made = {path: _content(workspace, path) for path in task.draws}
        except WinkError as error:
            outcome.wrong = [f"{type(error).__name__}: {error}"]
        else:
            outcome.answer = response.text
            outcome.wrong = faults(task, response.text, response.output, made)
    outcome.seconds = time.monotonic() - begun
    _count(outcome, session)
    return outcome


def _ask(
    task: Task,
    adapter: OpenAIAdapter,
    workspace: OpenAIContainerWorkspaceSection,
    session: Session,
    seconds: float,
) -> PromptResponse[Any]:
    """One question after the other, in one container. Only the last has the answer."""
    *before, last = task.asks
    for ask in before:
        adapter.evaluate(Prompt(_template(ask, workspace, None)), session=session, deadline=Deadline.after(seconds))
    template = _template(last, workspace, None if task.gives is None else type(task.gives))
    return adapter.evaluate(Prompt(template), session=session, deadline=Deadline.after(seconds))


def _template(ask: str, workspace: OpenAIContainerWorkspaceSection, gives: type | None) -> PromptTemplate[Any]:
    sections = [workspace, MarkdownSection(title="Task", key="task", template=ask.replace("$", "$$"))]
    if gives is None:
        return PromptTemplate(ns="bench", key="task", sections=sections)
    return PromptTemplate[gives](ns="bench", key="task", sections=sections)


def _content(workspace: OpenAIContainerWorkspaceSection, path: str) -> bytes | None:
    return workspace.filesystem.read_bytes(path) if workspace.filesystem.exists(path) else None


def _count(outcome: Outcome, session: Session) -> None:
    """What it took, also where it led to nothing."""
    for call in session[ToolInvoked].all():
        outcome.turns += 1  # one in which the model asked for it
        outcome.failed_calls += not call.success
        outcome.code.append(getattr(call.params, "code", None) or "")
    for response in session[ModelResponded].all():
        outcome.turns += 1  # the one in which it answered
        outcome.tokens_in += response.usage.input_tokens
        outcome.tokens_out += response.usage.output_tokens


def summary(outcomes: list[Outcome]) -> Table:
    """By kind, and all together."""
    table = Table("kind", *(Column(name, justify="right") for name in _COLUMNS))
    for kind in get_args(Kind):
        if some := [one for one in outcomes if one.kind == kind]:
            table.add_row(kind, *_figures(some))
    table.add_section()
    table.add_row("all", *_figures(outcomes))
    return table


_COLUMNS = ("right", "of", "turns", "failed calls", "tokens in", "out", "seconds each")


def _figures(outcomes: list[Outcome]) -> list[str]:
    mean = statistics.mean(one.seconds for one in outcomes) if outcomes else 0.0
    counts = (
        sum(one.right for one in outcomes),
        len(outcomes),
        sum(one.turns for one in outcomes),
        sum(one.failed_calls for one in outcomes),
        sum(one.tokens_in for one in outcomes),
        sum(one.tokens_out for one in outcomes),
    )
    return [*(f"{count:,}" for count in counts), f"{mean:.1f}"]


# ── the server ───────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def antwort(model: str) -> Iterator[tuple[OpenAI, str]]:
    """A server with this model, for a while, and what the model is called there."""
    with tempfile.TemporaryDirectory(prefix="antwort-eval-") as directory:
        place = Path(directory)
        settings: dict[str, Any] = {
            "log": {"level": "error"},
            "storage": {"url": f"sqlite:///{place}/antwort.db", "blobs": f"{place}/blobs"},
        }
        if model in CATALOGUE or model.endswith(".gguf"):
            settings["models"] = {_EMBEDDED: {"kind": "embedded", "model": model}}
        (place / "antwort.yaml").write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML too
        command = [*ANTWORT, "serve", "--config", place / "antwort.yaml", "--port", "{port}"]
        with (
            serving(command, ready="/readyz", log=place / "log") as server,
            OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", timeout=3600) as client,
        ):
            yield client, _EMBEDDED if "models" in settings else model


if __name__ == "__main__":
    main()
