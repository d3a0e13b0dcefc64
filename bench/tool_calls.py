"""Benchmark: many tool calls in one evaluation, with peers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from measurements import Measurement, Row, Suite
from peer_process import PeerFailedError, run_peer
from workload import FEW, MANY, SHAPES, Doubled, RunCounter, Samples, sample

from weakincentives.adapters import ModelReply
from weakincentives.prompt import MarkdownSection, Prompt, Tool, ToolContext, ToolResult
from weakincentives.runtime import Session
from weakincentives.testing import ScriptedAdapter, calls, say

TARGET = 0.3
MAX_GROWTH = 1.3  # quadratic is 10; the margin is for caches and the garbage collector
PEERS = {"pydantic-ai": "pydantic_ai_calls", "openai-agents": "openai_agents_calls"}


@dataclass(frozen=True)
class Number:
    """Parameters of the tool."""

    number: int


def suite() -> Suite:
    """Two rows per shape: the time, and the growth of the time per call."""
    own = sample_weakincentives()
    peers, versions = sample_peers()
    rows: list[Row] = []
    for shape in SHAPES:
        time, growth = time_and_growth(own[shape])
        by_peer = {peer: peer_or_reason(samples[shape]) for peer, samples in peers.items()}
        rows += [
            Row(f"{MANY:,} tool calls, {shape}", time, {peer: pair[0] for peer, pair in by_peer.items()}, TARGET),
            Row(
                f"  growth {shape}, {FEW} to {MANY:,}",
                growth,
                {peer: pair[1] for peer, pair in by_peer.items()},
                MAX_GROWTH,
            ),
        ]
    return Suite(
        rows,
        [
            f"Peers: {', '.join(versions)}. Same tool, their own fake models, async tools, no tracing, raised limits.",
            "Growth: time per call of 1,000 ÷ time per call of 100. 1 is linear, 10 quadratic.",
        ],
    )


def sample_weakincentives() -> dict[str, Samples]:
    """The workload with `ScriptedAdapter`."""
    counter = RunCounter()

    def double(params: Number, *, context: ToolContext) -> ToolResult[Doubled]:
        _ = context
        return ToolResult.ok(counter.double(params.number))

    tool = Tool[Number, Doubled](name="double", description="Double a number.", handler=double)
    task = MarkdownSection(title="Task", key="task", template="Double.", tools=[tool])
    prompt: Prompt[object] = Prompt(ns="bench", key="calls", sections=[task])

    def run(turns: int, calls: int) -> None:
        ScriptedAdapter(replies(turns, calls), max_turns=turns + 1).evaluate(prompt, session=Session())

    return {shape: sample(run, counter, shape) for shape in SHAPES}


def replies(turns: int, each: int) -> Iterator[ModelReply]:
    """The model's replies, created lazily."""
    for _ in range(turns):
        yield calls(*(("double", {"number": number}) for number in range(each)))
    yield say("done")


def sample_peers() -> tuple[dict[str, dict[str, Samples | str]], list[str]]:
    """Samples and versions of the peers."""
    samples: dict[str, dict[str, Samples | str]] = {}
    versions: list[str] = []
    for peer, module in PEERS.items():
        try:
            result = run_peer(module)
        except PeerFailedError as failure:
            samples[peer] = dict.fromkeys(SHAPES, str(failure))
            versions.append(f"{peer} (absent)")
        else:
            samples[peer] = result["samples"]
            versions.append(f"{peer} {result['version']}")
    return samples, versions


def peer_or_reason(samples: Samples | str) -> tuple[Measurement | str, Measurement | str]:
    """As `time_and_growth`, or the reason why there is none, for both."""
    return (samples, samples) if isinstance(samples, str) else time_and_growth(samples)


def time_and_growth(samples: Samples) -> tuple[Measurement, Measurement]:
    """Time of the larger count of calls, and growth of the time per call."""
    few, many = (Measurement.from_samples(samples[str(count)]) for count in (FEW, MANY))
    return many, many.divided_by(MANY).ratio_to(few.divided_by(FEW))
