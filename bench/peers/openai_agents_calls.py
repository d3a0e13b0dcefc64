"""The tool calls of the workload, made by openai-agents with a model that answers from a script.

Everything is as quick as the library allows: the tool is async (a plain function would be
sent to a thread), tracing is off, and the limit on turns is raised.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from importlib.metadata import version
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage, function_tool, set_tracing_disabled
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from workload import Doubled, Tally, sample_or_reason

tally = Tally()


@function_tool
async def double(number: int) -> Doubled:
    """Double a number."""
    return tally.double(number)


class Scripted(Model):
    """Answers line by line."""

    def __init__(self, script: Iterator[ModelResponse]) -> None:
        self.script = script

    async def get_response(self, *_args: Any, **_options: Any) -> ModelResponse:  # noqa: ANN401 - it heeds no question
        return next(self.script)

    def stream_response(self, *_args: Any, **_options: Any) -> AsyncIterator[Any]:  # noqa: ANN401 - the same
        raise NotImplementedError


def replies(turns: int, calls: int) -> Iterator[ModelResponse]:
    """What the model says, made when it is asked."""
    for turn in range(turns):
        yield reply(
            ResponseFunctionToolCall(
                type="function_call", call_id=f"call_{turn}_{n}", name="double", arguments=f'{{"number": {n}}}'
            )
            for n in range(calls)
        )
    text = ResponseOutputText(type="output_text", text="done", annotations=[])
    yield reply([ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])])


def reply(items: Any) -> ModelResponse:  # noqa: ANN401 - a union of every item the SDK knows
    """One answer of the model."""
    usage = Usage(requests=1, input_tokens=1, output_tokens=1, total_tokens=2)
    return ModelResponse(output=list(items), usage=usage, response_id=None)


def run(turns: int, calls: int) -> None:
    """One evaluation."""
    agent = Agent(name="bench", tools=[double], model=Scripted(replies(turns, calls)))
    Runner.run_sync(agent, "Double.", max_turns=turns + 1, run_config=RunConfig(tracing_disabled=True))


if __name__ == "__main__":
    set_tracing_disabled(True)
    samples = sample_or_reason(run, tally)
    print(json.dumps({"version": version("openai-agents"), "samples": samples}))
