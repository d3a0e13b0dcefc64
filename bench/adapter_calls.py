"""What the OpenAI adapter costs per tool call and per turn, over HTTP to a dummy on loopback: ours, and our peers'."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dummy_client import VARIABLE, address, bare_requests, plan
from peer_process import PeerFailedError, ask
from readings import Reading, Row, Suite, seconds
from workload import LONG, LONGEST, MANY, OVER_HTTP, SHAPES, Doubled, Samples, Tally, sample

from weakincentives.adapters.openai import OpenAIAdapter, OpenAIClientConfig
from weakincentives.prompt import MarkdownSection, Prompt, Tool, ToolContext, ToolResult
from weakincentives.runtime import Session

PEERS = {"pydantic-ai": "pydantic_ai_wire", "openai-agents": "openai_agents_wire"}
ROUNDS = 5
NAMES = {"in one turn": "over HTTP, per call of {:,} in one turn", "in as many turns": "over HTTP, per turn of {:,}"}
DUMMY = Path(__file__).with_name("dummy_api.py")


def suite() -> Suite:
    """For each shape: the share of one call or turn, and how it grows with their number. And what HTTP alone costs."""
    with dummy():
        bare = Reading.of([bare_seconds() for _ in range(ROUNDS)]).over(MANY)
        ours = sample_ours()
        peers, versions = ask_peers()
    rows = [Row("a bare request to the dummy, for comparison", bare)]
    for shape, (few, many) in OVER_HTTP.items():
        share, growth = share_and_growth(ours[shape], few, many)
        theirs = {peer: theirs_or_reason(samples[shape], few, many) for peer, samples in peers.items()}
        rows += [
            Row(NAMES[shape].format(many), share, {peer: pair[0] for peer, pair in theirs.items()}),
            Row(f"  growth, {few} to {many:,}", growth, {peer: pair[1] for peer, pair in theirs.items()}),
        ]
    long = {peer: one_of_many(samples[LONG]) for peer, samples in peers.items()}
    rows.append(Row(NAMES["in as many turns"].format(MANY), Reading.of(ours[LONG][str(MANY)]).over(MANY), long))
    return Suite(
        rows,
        [
            f"Peers: {', '.join(versions)}, each with its own class for the Responses API; async tools, no tracing.",
            "The dummy is a process of its own that answers without looking. All send the whole conversation again.",
            f"A peer's {MANY:,} turns are run once, where that takes less than {LONGEST / 60:.0f} minutes.",
        ],
    )


@contextmanager
def dummy() -> Iterator[None]:
    """The dummy for a while; it ends with the pipe to it."""
    process = subprocess.Popen([sys.executable, DUMMY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None  # noqa: S101 - a pipe was asked for
        os.environ[VARIABLE] = process.stdout.readline().strip()
        yield
    finally:
        process.communicate()


def bare_seconds() -> float:
    """Many requests without an adapter."""
    plan(MANY, 1)
    return seconds(lambda: bare_requests(MANY))


def sample_ours() -> dict[str, Samples]:
    """The workload, with the OpenAI adapter."""
    tally = Tally()

    def double(params: Doubled, *, context: ToolContext) -> ToolResult[Doubled]:
        _ = context
        return ToolResult.ok(tally.double(params.number))

    tool = Tool[Doubled, Doubled](name="double", description="Double a number.", handler=double)
    task = MarkdownSection(title="Task", key="task", template="Double.", tools=[tool])
    prompt: Prompt[object] = Prompt(ns="bench", key="calls", sections=[task])
    adapter = OpenAIAdapter(
        model="dummy",
        client_config=OpenAIClientConfig(base_url=f"{address()}/v1", api_key="none"),
        max_turns=MANY + 1,
    )

    def run(turns: int, calls: int) -> None:
        plan(turns, calls)
        adapter.evaluate(prompt, session=Session())

    sampled = {shape: sample(run, tally, shape, OVER_HTTP) for shape in SHAPES}
    return {**sampled, LONG: sample(run, tally, "in as many turns")}


def ask_peers() -> tuple[dict[str, dict[str, Samples | str]], list[str]]:
    """The peers' samples, and which versions gave them."""
    samples: dict[str, dict[str, Samples | str]] = {}
    versions: list[str] = []
    for peer, module in PEERS.items():
        try:
            answer = ask(module)
        except PeerFailedError as failure:
            samples[peer] = dict.fromkeys((*SHAPES, LONG), str(failure))
            versions.append(f"{peer} (absent)")
        else:
            samples[peer] = answer["samples"]
            versions.append(f"{peer} {answer['version']}")
    return samples, versions


def theirs_or_reason(samples: Samples | str, few: int, many: int) -> tuple[Reading | str, Reading | str]:
    """As `share_and_growth`; or the reason why there are none, for both."""
    return (samples, samples) if isinstance(samples, str) else share_and_growth(samples, few, many)


def one_of_many(samples: Samples | str) -> Reading | str:
    """The share of one; or the reason why there is none."""
    return samples if isinstance(samples, str) else Reading.of(samples[str(MANY)]).over(MANY)


def share_and_growth(samples: Samples, few: int, many: int) -> tuple[Reading, Reading]:
    """The share of one among many, and how many times that of one among few it is."""
    one_of_few, one_of_many = (Reading.of(samples[str(count)]).over(count) for count in (few, many))
    return one_of_many, one_of_many.per(one_of_few)
