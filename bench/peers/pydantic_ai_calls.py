"""Peer pydantic-ai: the tool-call workload with its `FunctionModel`.

Settings for speed: model function and tool are async (a plain function would run in a thread), the limit on requests
and instrumentation are off, and each reply has its usage, because `FunctionModel` would otherwise count the words of
the whole history.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import version

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage, UsageLimits
from workload import Doubled, RunCounter, sample_or_reason

UNLIMITED = UsageLimits(request_limit=None)

counter = RunCounter()
agent = Agent()


@agent.tool_plain
async def double(number: int) -> Doubled:
    """Double a number."""
    return counter.double(number)


def replies(turns: int, calls: int) -> Iterator[ModelResponse]:
    """The model's replies, created lazily."""
    for turn in range(turns):
        parts = [ToolCallPart("double", {"number": n}, tool_call_id=f"call_{turn}_{n}") for n in range(calls)]
        yield ModelResponse(parts=parts, usage=RequestUsage(input_tokens=1, output_tokens=1))
    yield ModelResponse(parts=[TextPart("done")], usage=RequestUsage(input_tokens=1, output_tokens=1))


def run(turns: int, calls: int) -> None:
    """One evaluation."""
    script = replies(turns, calls)

    async def model(_messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        return next(script)

    agent.run_sync("Double.", model=FunctionModel(model), usage_limits=UNLIMITED)


if __name__ == "__main__":
    samples = sample_or_reason(run, counter)
    print(json.dumps({"version": version("pydantic-ai-slim"), "samples": samples}))
