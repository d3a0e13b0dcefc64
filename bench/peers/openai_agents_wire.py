"""Peer openai-agents: the tool-call workload over HTTP, with its Responses API class and the dummy API."""

from __future__ import annotations

import json
from importlib.metadata import version

from agents import Agent, OpenAIResponsesModel, RunConfig, Runner, function_tool, set_tracing_disabled
from dummy_client import base_url, plan
from openai import AsyncOpenAI
from workload import Doubled, RunCounter, sample_over_http

counter = RunCounter()


@function_tool
async def double(number: int) -> Doubled:
    """Double a number."""
    return counter.double(number)


def run(turns: int, calls: int) -> None:
    """One evaluation. A new client each time, because each run has its own event loop."""
    plan(turns, calls)
    client = AsyncOpenAI(base_url=f"{base_url()}/v1", api_key="none", max_retries=0)
    agent = Agent(name="bench", tools=[double], model=OpenAIResponsesModel(model="dummy", openai_client=client))
    Runner.run_sync(agent, "Double.", max_turns=turns + 1, run_config=RunConfig(tracing_disabled=True))


if __name__ == "__main__":
    set_tracing_disabled(True)
    samples = sample_over_http(run, counter)
    print(json.dumps({"version": version("openai-agents"), "samples": samples}))
