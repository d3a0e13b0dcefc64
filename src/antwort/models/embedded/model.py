"""The driver of the embedded model: lays the dialogue out, asks what the turn says, reads what comes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final, TypeAlias, cast

import msgspec
from msgspec import Struct

from antwort.engine.ports import ModelRequest, Piece
from antwort.models import upstream_errors
from antwort.models.embedded.generation import Ask, Ended, Turn
from antwort.models.embedded.prompt import messages
from antwort.models.embedded.supervisor import Supervisor
from antwort.models.logprobs import Logprob, read_logprobs
from antwort.models.upstream import Upstream, UpstreamStatusError

_SEED: Final = 1


class _Chunk(Struct):
    content: str = ""
    stop: bool = False
    stop_type: str = "none"
    stopping_word: str = ""
    tokens_predicted: int = 0
    tokens_evaluated: int = 0
    timings: dict[str, Any] | None = None
    completion_probabilities: Any = None
    error: Any = None


_Words: TypeAlias = tuple[str, tuple[Logprob, ...]]
"""Some words, and how likely each was, where that is asked for."""
_decoder = msgspec.json.Decoder(_Chunk)


class Embedded:
    """A model in a process beside this one. Where a request says nothing else, it writes what is likeliest."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    async def generate(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        """Ask, and pass on what comes."""
        upstream = await self._supervisor.upstream()
        turn = Turn(request, await _template(upstream, request))
        for piece in turn.opening():
            yield piece
        while (ask := turn.next()) is not None:
            async with aclosing(_complete(upstream, ask, request)) as words:
                async for word in words:
                    for piece in turn.end(word) if isinstance(word, Ended) else turn.read(*word):
                        yield piece
        yield turn.finished()

    async def count_tokens(self, request: ModelRequest) -> int:
        """As the model's own tokenizer counts."""
        upstream = await self._supervisor.upstream()
        prompt = await _template(upstream, request)
        asked = {"content": prompt, "add_special": True, "parse_special": True}
        answer = await _post(upstream, "tokenize", asked, request)
        tokens = answer.get("tokens")
        if not isinstance(tokens, list):
            raise upstream_errors.garbled()
        return len(cast("list[object]", tokens))

    async def aclose(self) -> None:
        await self._supervisor.aclose()


async def _template(upstream: Upstream, request: ModelRequest) -> str:
    prompt = (await _post(upstream, "apply-template", {"messages": messages(request)}, request)).get("prompt")
    if not isinstance(prompt, str):
        raise upstream_errors.garbled()
    return prompt


async def _post(upstream: Upstream, path: str, body: dict[str, Any], request: ModelRequest) -> dict[str, object]:
    try:
        answer = await upstream.post(f"{upstream.base_url}/{path}", body)
    except UpstreamStatusError as refusal:
        raise upstream.fault(refusal, model=request.model) from refusal
    return cast("dict[str, object]", answer) if isinstance(answer, dict) else {}


async def _complete(upstream: Upstream, ask: Ask, request: ModelRequest) -> AsyncGenerator[_Words | Ended, None]:
    """The words of one completion, and how it ended."""
    try:
        async with aclosing(upstream.stream("completion", _body(ask, request))) as events:
            async for event in events:
                try:
                    chunk = _decoder.decode(event.data)
                except msgspec.MsgspecError as error:
                    raise upstream_errors.garbled() from error
                if chunk.error:
                    raise upstream_errors.broke_off(upstream_errors.read_body(event.data), model=request.model)
                yield chunk.content, read_logprobs(chunk.completion_probabilities, request.top_logprobs)
                if chunk.stop:
                    yield _ended(chunk)
                    return
    except UpstreamStatusError as refusal:
        raise upstream.fault(refusal, model=request.model) from refusal
    raise upstream_errors.cut_off()


def _ended(chunk: _Chunk) -> Ended:
    cached = (chunk.timings or {}).get("cache_n", 0)
    return Ended(
        word=chunk.stopping_word if chunk.stop_type == "word" else "",
        cut=chunk.stop_type == "limit",
        read=chunk.tokens_evaluated,
        cached=cached if isinstance(cached, int) else 0,
        written=chunk.tokens_predicted,
    )


def _body(ask: Ask, request: ModelRequest) -> dict[str, Any]:
    body: dict[str, Any] = {
        "prompt": ask.prompt,
        "stream": True,
        "n_predict": ask.limit,
        "stop": list(ask.stop),
        "cache_prompt": True,
        "temperature": request.temperature or 0.0,
        "seed": _SEED,
    }
    optional = {
        "json_schema": ask.schema,
        "grammar": ask.grammar,
        "n_probs": None if request.top_logprobs is None else max(1, request.top_logprobs),
        "top_p": request.top_p,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
    }
    return body | {name: value for name, value in optional.items() if value is not None}
