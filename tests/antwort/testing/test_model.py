from __future__ import annotations

import pytest
import yaml

from antwort.engine.ports import CallPiece, Finished, Model, TextPiece
from antwort.models import ChatCompletions, Responses, RetryingModel, Scripted, Upstream, parse_script
from antwort.models.instrumentation import Instrumentation
from antwort.telemetry import Metrics
from antwort.testing.model import InvalidPieces, ModelAnswer, ModelConformance, fold


def retrying(model: Model) -> RetryingModel:
    return RetryingModel(model, instrumentation=Instrumentation(Metrics(), name="test", kind="test"))


class UpstreamConformance(ModelConformance):
    @pytest.fixture(autouse=True)
    def _set_upstream(self, upstream):
        self.upstream = upstream


class TestChatCompletions(UpstreamConformance):
    def make(self, reply) -> Model:
        self.upstream.set_replies(self.upstream.chat(reply))
        return ChatCompletions(Upstream(self.upstream.url, api_key="key"))

    def make_failing(self, text) -> Model:
        reply = self.upstream.chat(ModelAnswer(text=text))
        reply.chunks, reply.disconnect = reply.chunks[:-3], True
        self.upstream.set_replies(reply)
        return ChatCompletions(Upstream(self.upstream.url))


class TestResponses(UpstreamConformance):
    def make(self, reply):
        self.upstream.set_replies(self.upstream.responses(reply))
        return Responses(Upstream(self.upstream.url, api_key="key"))

    def make_failing(self, text):
        reply = self.upstream.responses(ModelAnswer(text=text))
        reply.chunks, reply.disconnect = reply.chunks[:-1], True
        self.upstream.set_replies(reply)
        return Responses(Upstream(self.upstream.url))


class TestRetryingModel(TestChatCompletions):
    def make(self, reply):
        return retrying(super().make(reply))

    def make_failing(self, text):
        return retrying(super().make_failing(text))


class TestScripted(ModelConformance):
    def make(self, reply):
        steps = [{"reasoning": reply.reasoning}, {"text": reply.text}, {"refusal": reply.refusal}]
        steps += [{"call": {"name": call.name, "arguments": call.arguments}} for call in reply.calls]
        usage = {
            "input_tokens": reply.usage.input_tokens,
            "output_tokens": reply.usage.output_tokens,
            "cached_tokens": reply.usage.input_tokens_details.cached_tokens,
            "reasoning_tokens": reply.usage.output_tokens_details.reasoning_tokens,
        }
        answer = {"reply": steps, "finish": reply.reason, "usage": usage}
        return Scripted(parse_script(yaml.safe_dump({"fragment": 5, "answers": [answer]})))

    def make_failing(self, text):
        return Scripted(parse_script(yaml.safe_dump({"answers": [{"reply": [{"text": text}, {"fault": {}}]}]})))


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [TextPiece("no Finished")],
        [Finished(), TextPiece("after Finished")],
        [Finished(), Finished()],
        [CallPiece(0, "", "call_1"), Finished()],
        [CallPiece(0, "f", ""), Finished()],
        [CallPiece(1, "f", "call_1"), Finished()],
        [CallPiece(0, "f", "call_1"), CallPiece(0, "f"), Finished()],
        [CallPiece(0, "f", "call_1"), CallPiece(1, "f", "call_1"), Finished()],
    ],
)
def test_fold_rejects_pieces_that_break_the_port(pieces):
    with pytest.raises(InvalidPieces):
        fold(pieces)
