"""Benchmark: OpenAI adapter over HTTP to a dummy API on loopback, per tool call and per turn, with peers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dummy_client import URL_VARIABLE, bare_requests, base_url, plan
from measurements import Measurement, Row, Suite, measure_seconds
from peer_process import PeerFailedError, run_peer
from workload import LONG, MANY, MAX_LONG_SECONDS, OVER_HTTP, SHAPES, Doubled, RunCounter, Samples, sample

from weakincentives.adapters.openai import OpenAIAdapter, OpenAIClientConfig
from weakincentives.prompt import MarkdownSection, Prompt, Tool, ToolContext, ToolResult
from weakincentives.runtime import Session

PEERS = {"pydantic-ai": "pydantic_ai_wire", "openai-agents": "openai_agents_wire"}
ROUNDS = 5
NAMES = {"in one turn": "over HTTP, per call of {:,} in one turn", "in as many turns": "over HTTP, per turn of {:,}"}
DUMMY = Path(__file__).with_name("dummy_api.py")


def suite() -> Suite:
    """Per shape: time per call or turn, and its growth. For comparison, plain HTTP requests."""
    with dummy():
        bare = Measurement.from_samples([bare_seconds() for _ in range(ROUNDS)]).divided_by(MANY)
        own = sample_weakincentives()
        peers, versions = sample_peers()
    rows = [Row("plain request to the dummy API, for comparison", bare)]
    for shape, (few, many) in OVER_HTTP.items():
        share, growth = share_and_growth(own[shape], few, many)
        by_peer = {peer: peer_or_reason(samples[shape], few, many) for peer, samples in peers.items()}
        rows += [
            Row(NAMES[shape].format(many), share, {peer: pair[0] for peer, pair in by_peer.items()}),
            Row(f"  growth, {few} to {many:,}", growth, {peer: pair[1] for peer, pair in by_peer.items()}),
        ]
    long = {peer: one_of_many(samples[LONG]) for peer, samples in peers.items()}
    rows.append(
        Row(
            NAMES["in as many turns"].format(MANY),
            Measurement.from_samples(own[LONG][str(MANY)]).divided_by(MANY),
            long,
        )
    )
    return Suite(
        rows,
        [
            f"Peers: {', '.join(versions)}, each with its own Responses API class; async tools, no tracing.",
            "The dummy API is a separate process. All clients send the whole conversation with each turn.",
            f"A peer's {MANY:,} turns run once, if less than {MAX_LONG_SECONDS / 60:.0f} minutes are expected.",
        ],
    )


@contextmanager
def dummy() -> Iterator[None]:
    """Run the dummy API; it ends when its stdin closes."""
    process = subprocess.Popen([sys.executable, DUMMY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None  # noqa: S101 - stdout is a pipe
        os.environ[URL_VARIABLE] = process.stdout.readline().strip()
        yield
    finally:
        process.communicate()


def bare_seconds() -> float:
    """Requests without an adapter."""
    plan(MANY, 1)
    return measure_seconds(lambda: bare_requests(MANY))


def sample_weakincentives() -> dict[str, Samples]:
    """The workload with `OpenAIAdapter`."""
    counter = RunCounter()

    def double(params: Doubled, *, context: ToolContext) -> ToolResult[Doubled]:
        _ = context
        return ToolResult.ok(counter.double(params.number))

    tool = Tool[Doubled, Doubled](name="double", description="Double a number.", handler=double)
    task = MarkdownSection(title="Task", key="task", template="Double.", tools=[tool])
    prompt: Prompt[object] = Prompt(ns="bench", key="calls", sections=[task])
    adapter = OpenAIAdapter(
        model="dummy",
        client_config=OpenAIClientConfig(base_url=f"{base_url()}/v1", api_key="none"),
        max_turns=MANY + 1,
    )

    def run(turns: int, calls: int) -> None:
        plan(turns, calls)
        adapter.evaluate(prompt, session=Session())

    sampled = {shape: sample(run, counter, shape, OVER_HTTP) for shape in SHAPES}
    return {**sampled, LONG: sample(run, counter, "in as many turns")}


def sample_peers() -> tuple[dict[str, dict[str, Samples | str]], list[str]]:
    """Samples and versions of the peers."""
    samples: dict[str, dict[str, Samples | str]] = {}
    versions: list[str] = []
    for peer, module in PEERS.items():
        try:
            result = run_peer(module)
        except PeerFailedError as failure:
            samples[peer] = dict.fromkeys((*SHAPES, LONG), str(failure))
            versions.append(f"{peer} (absent)")
        else:
            samples[peer] = result["samples"]
            versions.append(f"{peer} {result['version']}")
    return samples, versions


def peer_or_reason(samples: Samples | str, few: int, many: int) -> tuple[Measurement | str, Measurement | str]:
    """As `share_and_growth`, or the reason why there is none, for both."""
    return (samples, samples) if isinstance(samples, str) else share_and_growth(samples, few, many)


def one_of_many(samples: Samples | str) -> Measurement | str:
    """Time per turn, or the reason why there is none."""
    return samples if isinstance(samples, str) else Measurement.from_samples(samples[str(MANY)]).divided_by(MANY)


def share_and_growth(samples: Samples, few: int, many: int) -> tuple[Measurement, Measurement]:
    """Time per item of the larger count, and its ratio to that of the smaller count."""
    one_of_few, one_of_many = (Measurement.from_samples(samples[str(count)]).divided_by(count) for count in (few, many))
    return one_of_many, one_of_many.ratio_to(one_of_few)
