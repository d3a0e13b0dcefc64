"""Evaluation of a model on the tasks, through client library, server and sandbox: `make eval`.

    make eval                                   all tasks, with the default embedded model
    make eval EVAL_ARGS="--kind typed"          some tasks
    make eval MODEL=…                           another model: a name of the catalogue, a .gguf file, or a model that
                                                `antwort serve` discovers (OPENAI_BASE_URL, or a local server)

`antwort serve` runs in a separate process with the local jail; the client library sends the requests.
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
from tasks.environment import Environment, open_environment
from tasks.task import Kind, Task, find_errors

from antwort.models.embedded.weights import CATALOGUE, DEFAULT_MODEL
from weakincentives import MarkdownSection, Prompt, PromptTemplate, Session
from weakincentives.adapters import PromptResponse
from weakincentives.adapters.openai import (
    OpenAIAdapter,
    OpenAIModelConfig,
)
from weakincentives.adapters.openai.native_tools import McpCall
from weakincentives.deadlines import Deadline
from weakincentives.errors import WinkError
from weakincentives.runtime import ModelResponded, ToolInvoked
from weakincentives.tools import ShellCall

_MODEL_NAME = "embedded"
ANTWORT_COMMAND = (sys.executable, "-m", "antwort")


@dataclass
class Outcome:
    """The result of one task."""

    name: str
    kind: str
    errors: list[str] = field(default_factory=list[str])
    turns: int = 0
    failed_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    answer: str = ""
    code: list[str] = field(default_factory=list[str])

    @property
    def is_right(self) -> bool:
        return not self.errors


def main() -> None:
    """Run the tasks that the command line selects."""
    options = parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # an exit stops the server too
    tasks = [
        task
        for task in TASKS
        if (not options.only or task.name in options.only) and (not options.kind or task.kind in options.kind)
    ]
    console = Console()
    outcomes: list[Outcome] = []
    if (
        options.model in CATALOGUE
        and subprocess.run([*ANTWORT_COMMAND, "model", "pull", options.model], check=False).returncode
    ):
        sys.exit(1)  # it has printed the reason
    with running_server(options.model) as (client, model):
        console.print(f"{len(tasks)} tasks with {model}")
        for task in tasks:
            outcome = run_task(task, client, model, seconds=options.seconds)
            outcomes.append(outcome)
            verdict = "right" if outcome.is_right else f"WRONG: {'; '.join(outcome.errors)}"
            console.print(f"  {task.name:<18} {outcome.seconds:6.1f} s  {verdict}", soft_wrap=True, markup=False)
    console.print(summary(outcomes))
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in outcomes], indent=1), encoding="utf-8")
    right = sum(one.is_right for one in outcomes)
    if right < options.least:
        sys.exit(f"{right} of {len(outcomes)} are right, fewer than --least {options.least}")


def parser() -> argparse.ArgumentParser:
    """The command line parser."""
    command = argparse.ArgumentParser(description="Evaluate a model on small tasks with hosted tools.")
    command.add_argument("--model", metavar="NAME", default=DEFAULT_MODEL, help=f"the model (default {DEFAULT_MODEL})")
    command.add_argument(
        "--only",
        metavar="NAME",
        action="append",
        choices=[task.name for task in TASKS],
        help="run this task only; can be repeated",
    )
    command.add_argument(
        "--kind", action="append", choices=get_args(Kind), help="run the tasks of this kind only; can be repeated"
    )
    command.add_argument(
        "--seconds", metavar="N", type=float, default=300.0, help="time limit of each answer (default 300)"
    )
    command.add_argument("--least", metavar="N", type=int, default=0, help="fail if fewer tasks are right")
    command.add_argument("--json", metavar="FILE", type=Path, help="write the results to this file")
    return command


def run_task(task: Task, client: OpenAI, model: str, *, seconds: float) -> Outcome:
    """Ask all questions of a task and check the answer."""
    outcome = Outcome(task.name, task.kind)
    session = Session()
    started = time.monotonic()
    try:
        with open_environment(task, client, session) as environment:
            adapter = OpenAIAdapter(
                model=model,
                model_config=OpenAIModelConfig(temperature=0.0),
                client=client,
                hosted_tools=environment.hosted_tools,
            )
            response = _evaluate(task, adapter, environment, session, seconds)
            files = environment.read_files(task.result_paths)
    except WinkError as error:
        outcome.errors = [f"{type(error).__name__}: {error}"]
    else:
        outcome.answer = response.text
        outcome.errors = find_errors(task, response.text, response.output, files, _successful_calls(session))
    outcome.seconds = time.monotonic() - started
    _count_usage(outcome, session)
    return outcome


def _evaluate(
    task: Task, adapter: OpenAIAdapter, environment: Environment, session: Session, seconds: float
) -> PromptResponse[Any]:
    """Ask the questions in order, in one environment; return the response to the last."""
    *first, last = task.questions
    for question in first:
        adapter.evaluate(
            Prompt(_template(question, environment, None)), session=session, deadline=Deadline.after(seconds)
        )
    template = _template(last, environment, None if task.expected_output is None else type(task.expected_output))
    return adapter.evaluate(Prompt(template), session=session, deadline=Deadline.after(seconds))


def _template(question: str, environment: Environment, output_type: type | None) -> PromptTemplate[Any]:
    sections = [
        *environment.sections,
        MarkdownSection(title="Task", key="task", template=question.replace("$", "$$")),
    ]
    if output_type is None:
        return PromptTemplate(ns="bench", key="task", sections=sections)
    return PromptTemplate[output_type](ns="bench", key="task", sections=sections)


def _successful_calls(session: Session) -> set[str]:
    """The names of the tools that were called without an error: for MCP, those of the server."""
    calls = [call for call in session[ToolInvoked].all() if call.success]
    return {call.params.name if isinstance(call.params, McpCall) else call.name for call in calls}


def _count_usage(outcome: Outcome, session: Session) -> None:
    """Count turns, failed calls and tokens, also of a failed task."""
    for call in session[ToolInvoked].all():
        outcome.turns += 1  # the turn with the call
        outcome.failed_calls += not call.success
        outcome.code.append(_code(call.params))
    for response in session[ModelResponded].all():
        outcome.turns += 1  # the turn with the answer
        outcome.input_tokens += response.usage.input_tokens
        outcome.output_tokens += response.usage.output_tokens


def _code(params: object) -> str:
    """What a tool was called with, for the report."""
    match params:
        case ShellCall():
            return "\n".join(params.commands)
        case McpCall():
            return f"{params.name} {params.arguments}"
        case _:
            return getattr(params, "code", None) or ""


def summary(outcomes: list[Outcome]) -> Table:
    """A table of the results by kind, and in total."""
    table = Table("kind", *(Column(name, justify="right") for name in _COLUMNS))
    for kind in get_args(Kind):
        if of_kind := [one for one in outcomes if one.kind == kind]:
            table.add_row(kind, *_figures(of_kind))
    table.add_section()
    table.add_row("all", *_figures(outcomes))
    return table


_COLUMNS = ("right", "of", "turns", "failed calls", "tokens in", "out", "seconds each")


def _figures(outcomes: list[Outcome]) -> list[str]:
    mean = statistics.mean(one.seconds for one in outcomes) if outcomes else 0.0
    counts = (
        sum(one.is_right for one in outcomes),
        len(outcomes),
        sum(one.turns for one in outcomes),
        sum(one.failed_calls for one in outcomes),
        sum(one.input_tokens for one in outcomes),
        sum(one.output_tokens for one in outcomes),
    )
    return [*(f"{count:,}" for count in counts), f"{mean:.1f}"]


# ── server ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def running_server(model: str) -> Iterator[tuple[OpenAI, str]]:
    """Run a server with this model; yields a client and the name of the model at the server."""
    with tempfile.TemporaryDirectory(prefix="antwort-eval-") as directory:
        folder = Path(directory)
        settings: dict[str, Any] = {
            "log": {"level": "error"},
            "storage": {"url": f"sqlite:///{folder}/antwort.db", "blobs": f"{folder}/blobs"},
        }
        if model in CATALOGUE or model.endswith(".gguf"):
            settings["models"] = {_MODEL_NAME: {"kind": "embedded", "model": model}}
        (folder / "antwort.yaml").write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML too
        command = [*ANTWORT_COMMAND, "serve", "--config", folder / "antwort.yaml", "--port", "{port}"]
        with (
            serving(command, ready="/readyz", log=folder / "log") as server,
            OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", timeout=3600) as client,
        ):
            yield client, _MODEL_NAME if "models" in settings else model


if __name__ == "__main__":
    main()
