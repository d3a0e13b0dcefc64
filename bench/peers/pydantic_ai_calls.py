"""The tool calls of the workload, made by pydantic-ai with its own FunctionModel.

Everything is as quick as the library allows: model function and tool are async (a plain
function would be sent to a thread), the limit on requests is off, nothing is instrumented,
and each reply says its usage, because FunctionModel would else count the words of the whole history.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import version

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage, UsageLimits
from workload import Doubled, Tally, sample_or_reason

UNLIMITED = UsageLimits(request_limit=None)

tally = Tally()
agent = Agent()


@agent.tool_plain
async def double(number: int) -> Doubled:
    """Double a number."""
    return tally.double(number)


def replies(turns: int, calls: int) -> Iterator[ModelResponse]:
    """What the model says, made when it is asked."""
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
    samples = sample_or_reason(run, tally)
    print(json.dumps({"version": version("pydantic-ai-slim"), "samples": samples}))
