"""Peer openai-agents: the tool-call workload with a scripted model.

Settings for speed: the tool is async (a plain function would run in a thread), tracing is off, and the limit
on turns is raised.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from importlib.metadata import version
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage, function_tool, set_tracing_disabled
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from workload import Doubled, RunCounter, sample_or_reason

counter = RunCounter()


@function_tool
async def double(number: int) -> Doubled:
    """Double a number."""
    return counter.double(number)


class Scripted(Model):
    """Returns the replies of a script."""

    def __init__(self, script: Iterator[ModelResponse]) -> None:
        self.script = script

    async def get_response(self, *_args: Any, **_options: Any) -> ModelResponse:  # noqa: ANN401 - they are ignored
        return next(self.script)

    def stream_response(self, *_args: Any, **_options: Any) -> AsyncIterator[Any]:  # noqa: ANN401 - they are ignored
        raise NotImplementedError


def replies(turns: int, calls: int) -> Iterator[ModelResponse]:
    """The model's replies, created lazily."""
    for turn in range(turns):
        yield reply(
            ResponseFunctionToolCall(
                type="function_call", call_id=f"call_{turn}_{n}", name="double", arguments=f'{{"number": {n}}}'
            )
            for n in range(calls)
        )
    text = ResponseOutputText(type="output_text", text="done", annotations=[])
    yield reply([ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])])


def reply(items: Any) -> ModelResponse:  # noqa: ANN401 - a union of all item types of the SDK
    """One reply of the model."""
    usage = Usage(requests=1, input_tokens=1, output_tokens=1, total_tokens=2)
    return ModelResponse(output=list(items), usage=usage, response_id=None)


def run(turns: int, calls: int) -> None:
    """One evaluation."""
    agent = Agent(name="bench", tools=[double], model=Scripted(replies(turns, calls)))
    Runner.run_sync(agent, "Double.", max_turns=turns + 1, run_config=RunConfig(tracing_disabled=True))


if __name__ == "__main__":
    set_tracing_disabled(True)
    samples = sample_or_reason(run, counter)
    print(json.dumps({"version": version("openai-agents"), "samples": samples}))
