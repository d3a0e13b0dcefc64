"""The tool calls of the workload, made by pydantic-ai with its class for the Responses API, against the dummy."""

from __future__ import annotations

import json
from importlib.metadata import version

from dummy_client import address, plan
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits
from workload import Doubled, Tally, sample_over_http

UNLIMITED = UsageLimits(request_limit=None)

tally = Tally()
agent = Agent()


@agent.tool_plain
async def double(number: int) -> Doubled:
    """Double a number."""
    return tally.double(number)


def run(turns: int, calls: int) -> None:
    """One evaluation. The client is made anew, because each run has an event loop of its own."""
    plan(turns, calls)
    client = AsyncOpenAI(base_url=f"{address()}/v1", api_key="none", max_retries=0)
    model = OpenAIResponsesModel("dummy", provider=OpenAIProvider(openai_client=client))
    agent.run_sync("Double.", model=model, usage_limits=UNLIMITED)


if __name__ == "__main__":
    samples = sample_over_http(run, tally)
    print(json.dumps({"version": version("pydantic-ai-slim"), "samples": samples}))
