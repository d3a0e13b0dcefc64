"""The tool calls of the workload, made by openai-agents with its class for the Responses API, against the dummy."""

from __future__ import annotations

import json
from importlib.metadata import version

from agents import Agent, OpenAIResponsesModel, RunConfig, Runner, function_tool, set_tracing_disabled
from dummy_client import address, plan
from openai import AsyncOpenAI
from workload import Doubled, Tally, sample_over_http

tally = Tally()


@function_tool
async def double(number: int) -> Doubled:
    """Double a number."""
    return tally.double(number)


def run(turns: int, calls: int) -> None:
    """One evaluation. The client is made anew, because each run has an event loop of its own."""
    plan(turns, calls)
    client = AsyncOpenAI(base_url=f"{address()}/v1", api_key="none", max_retries=0)
    agent = Agent(name="bench", tools=[double], model=OpenAIResponsesModel(model="dummy", openai_client=client))
    Runner.run_sync(agent, "Double.", max_turns=turns + 1, run_config=RunConfig(tracing_disabled=True))


if __name__ == "__main__":
    set_tracing_disabled(True)
    samples = sample_over_http(run, tally)
    print(json.dumps({"version": version("openai-agents"), "samples": samples}))
