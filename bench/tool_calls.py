"""How long many tool calls take in one evaluation: ours, and our peers'."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from peer_process import PeerFailedError, ask
from readings import Reading, Row, Suite
from workload import FEW, MANY, SHAPES, Doubled, Samples, Tally, sample

from weakincentives.adapters import ModelReply
from weakincentives.prompt import MarkdownSection, Prompt, Tool, ToolContext, ToolResult
from weakincentives.runtime import Session
from weakincentives.testing import ScriptedAdapter, calls, say

TARGET = 0.3
LINEAR = 1.3  # quadratic would be 10; caches and the garbage collector are allowed a little
PEERS = {"pydantic-ai": "pydantic_ai_calls", "openai-agents": "openai_agents_calls"}


@dataclass(frozen=True)
class Number:
    """What our tool takes."""

    number: int


def suite() -> Suite:
    """Two rows for each shape: the time, and how the time of one call grows with their number."""
    ours = sample_ours()
    peers, versions = ask_peers()
    rows: list[Row] = []
    for shape in SHAPES:
        time, growth = time_and_growth(ours[shape])
        theirs = {peer: theirs_or_reason(samples[shape]) for peer, samples in peers.items()}
        rows += [
            Row(f"{MANY:,} tool calls, {shape}", time, {peer: pair[0] for peer, pair in theirs.items()}, TARGET),
            Row(
                f"  growth {shape}, {FEW} to {MANY:,}", growth, {peer: pair[1] for peer, pair in theirs.items()}, LINEAR
            ),
        ]
    return Suite(
        rows,
        [
            f"Peers: {', '.join(versions)}. Same tool, own fake models, async tools, tracing off, limits raised.",
            "Growth: the time of one call among many, by that of one among few. 1 is linear, 10 quadratic.",
        ],
    )


def sample_ours() -> dict[str, Samples]:
    """The workload, with the scripted adapter."""
    tally = Tally()

    def double(params: Number, *, context: ToolContext) -> ToolResult[Doubled]:
        _ = context
        return ToolResult.ok(tally.double(params.number))

    tool = Tool[Number, Doubled](name="double", description="Double a number.", handler=double)
    task = MarkdownSection(title="Task", key="task", template="Double.", tools=[tool])
    prompt: Prompt[object] = Prompt(ns="bench", key="calls", sections=[task])

    def run(turns: int, calls: int) -> None:
        ScriptedAdapter(replies(turns, calls), max_turns=turns + 1).evaluate(prompt, session=Session())

    return {shape: sample(run, tally, shape) for shape in SHAPES}


def replies(turns: int, each: int) -> Iterator[ModelReply]:
    """What the model says, made when it is asked."""
    for _ in range(turns):
        yield calls(*(("double", {"number": number}) for number in range(each)))
    yield say("done")


def ask_peers() -> tuple[dict[str, dict[str, Samples | str]], list[str]]:
    """The peers' samples, and which versions gave them."""
    samples: dict[str, dict[str, Samples | str]] = {}
    versions: list[str] = []
    for peer, module in PEERS.items():
        try:
            answer = ask(module)
        except PeerFailedError as failure:
            samples[peer] = dict.fromkeys(SHAPES, str(failure))
            versions.append(f"{peer} (absent)")
        else:
            samples[peer] = answer["samples"]
            versions.append(f"{peer} {answer['version']}")
    return samples, versions


def theirs_or_reason(samples: Samples | str) -> tuple[Reading | str, Reading | str]:
    """As `time_and_growth`; or the reason why there are none, for both."""
    return (samples, samples) if isinstance(samples, str) else time_and_growth(samples)


def time_and_growth(samples: Samples) -> tuple[Reading, Reading]:
    """The time of many calls, and how the time of one grows from few to many."""
    few, many = (Reading.of(samples[str(count)]) for count in (FEW, MANY))
    return many, many.over(MANY).per(few.over(FEW))
