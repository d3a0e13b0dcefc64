"""Peer pydantic-ai: the tool-call workload over HTTP, with its Responses API class and the dummy API."""

from __future__ import annotations

import json
from importlib.metadata import version

from dummy_client import base_url, plan
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits
from workload import Doubled, RunCounter, sample_over_http

UNLIMITED = UsageLimits(request_limit=None)

counter = RunCounter()
agent = Agent()


@agent.tool_plain
async def double(number: int) -> Doubled:
    """Double a number."""
    return counter.double(number)


def run(turns: int, calls: int) -> None:
    """One evaluation. A new client each time, because each run has its own event loop."""
    plan(turns, calls)
    client = AsyncOpenAI(base_url=f"{base_url()}/v1", api_key="none", max_retries=0)
    model = OpenAIResponsesModel("dummy", provider=OpenAIProvider(openai_client=client))
    agent.run_sync("Double.", model=model, usage_limits=UNLIMITED)


if __name__ == "__main__":
    samples = sample_over_http(run, counter)
    print(json.dumps({"version": version("pydantic-ai-slim"), "samples": samples}))
