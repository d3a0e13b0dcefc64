from __future__ import annotations

import pytest
import yaml

from antwort.engine.ports import (
    CallPiece,
    Finished,
    Model,
    TextPiece,
)
from antwort.models import ChatCompletions, Resilient, Responses, Scripted, parse_script
from antwort.testing.model import BrokenAnswer, ModelConformance, WholeAnswer, fold


class OnLoopback(ModelConformance):
    @pytest.fixture(autouse=True)
    def _with_upstream(self, upstream):
        self.upstream = upstream


class TestChatCompletions(OnLoopback):
    def make(self, reply) -> Model:
        self.upstream.plays(self.upstream.chat(reply))
        return ChatCompletions(self.upstream.url, api_key="key")

    def make_failing(self, text) -> Model:
        play = self.upstream.chat(WholeAnswer(text=text))
        play.chunks, play.hang_up = play.chunks[:-3], True
        self.upstream.plays(play)
        return ChatCompletions(self.upstream.url)


class TestResponses(OnLoopback):
    def make(self, reply):
        self.upstream.plays(self.upstream.responses(reply))
        return Responses(self.upstream.url, api_key="key")

    def make_failing(self, text):
        play = self.upstream.responses(WholeAnswer(text=text))
        play.chunks, play.hang_up = play.chunks[:-1], True
        self.upstream.plays(play)
        return Responses(self.upstream.url)


class TestResilient(TestChatCompletions):
    def make(self, reply):
        return Resilient(super().make(reply))

    def make_failing(self, text):
        return Resilient(super().make_failing(text))


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
        [TextPiece("no end")],
        [Finished(), TextPiece("after the end")],
        [Finished(), Finished()],
        [CallPiece(0, "", "call_1"), Finished()],
        [CallPiece(0, "f", ""), Finished()],
        [CallPiece(1, "f", "call_1"), Finished()],
        [CallPiece(0, "f", "call_1"), CallPiece(0, "f"), Finished()],
        [CallPiece(0, "f", "call_1"), CallPiece(1, "f", "call_1"), Finished()],
    ],
)
def test_what_breaks_the_rules_of_the_port_is_no_answer(pieces):
    with pytest.raises(BrokenAnswer):
        fold(pieces)
