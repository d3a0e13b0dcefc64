"""The embedded model: implements the `Model` port with completions of a llama.cpp server process.

`prompt` builds the prompt and `generation` decides what to request next; this module does the I/O.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from antwort.engine.ports import ModelRequest, Piece
from antwort.models import upstream_errors
from antwort.models.embedded.generation import CompletionEnd, CompletionRequest, Generation
from antwort.models.embedded.prompt import to_prompt_messages
from antwort.models.embedded.supervisor import Supervisor
from antwort.models.logprobs import parse_logprobs
from antwort.models.upstream import Upstream, UpstreamStatusError

_SEED: Final = 1
_AVOID_LOOPS: Final = {"dry_multiplier": 1.0, "dry_allowed_length": 8, "dry_penalty_last_n": 96}
"""Sampling options of llama.cpp: more than 8 tokens that repeat some of the last 96 become unlikely."""


class _CompletionChunk(Struct):
    content: str = ""
    stop: bool = False
    stop_type: str = "none"
    stopping_word: str = ""
    tokens_predicted: int = 0
    tokens_evaluated: int = 0
    timings: dict[str, Any] | None = None
    completion_probabilities: Any = None
    error: Any = None


_decoder = msgspec.json.Decoder(_CompletionChunk)


class Embedded:
    """A model in a llama.cpp process. The default temperature is 0: the most likely tokens."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    async def generate(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        """Request completions until the answer is finished, and yield its pieces."""
        upstream = await self._supervisor.upstream()
        generation = Generation(request, await _apply_template(upstream, request))
        for piece in generation.initial_pieces():
            yield piece
        while (completion := generation.next_request()) is not None:
            try:
                async with aclosing(upstream.stream("completion", _completion_body(completion, request))) as events:
                    async for event in events:
                        chunk = _decode(event.data, upstream, request.model)
                        logprobs = parse_logprobs(chunk.completion_probabilities, request.top_logprobs)
                        for piece in generation.read(chunk.content, logprobs):
                            yield piece
                        if chunk.stop:
                            break
                    else:
                        raise upstream_errors.answer_truncated()
            except UpstreamStatusError as refusal:
                raise upstream.fault(refusal, model=request.model) from refusal
            for piece in generation.end(_completion_end(chunk)):
                yield piece
        yield generation.finished()

    async def count_tokens(self, request: ModelRequest) -> int:
        """The count of the model's own tokenizer."""
        upstream = await self._supervisor.upstream()
        prompt = await _apply_template(upstream, request)
        body = {"content": prompt, "add_special": True, "parse_special": True}
        tokens = (await _post(upstream, "tokenize", body, request)).get("tokens")
        if not isinstance(tokens, list):
            raise upstream_errors.malformed_answer()
        return len(cast("list[object]", tokens))

    async def aclose(self) -> None:
        await self._supervisor.aclose()


async def _apply_template(upstream: Upstream, request: ModelRequest) -> str:
    prompt = (await _post(upstream, "apply-template", {"messages": to_prompt_messages(request)}, request)).get("prompt")
    if not isinstance(prompt, str):
        raise upstream_errors.malformed_answer()
    return prompt


async def _post(upstream: Upstream, path: str, body: dict[str, Any], request: ModelRequest) -> dict[str, object]:
    try:
        answer = await upstream.post(f"{upstream.base_url}/{path}", body)
    except UpstreamStatusError as refusal:
        raise upstream.fault(refusal, model=request.model) from refusal
    return cast("dict[str, object]", answer) if isinstance(answer, dict) else {}


def _decode(data: bytes, upstream: Upstream, model: str) -> _CompletionChunk:
    try:
        chunk = _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise upstream_errors.malformed_answer() from error
    if chunk.error:
        raise upstream.stream_fault(upstream_errors.parse_error_body(data), model=model)
    return chunk


def _completion_end(chunk: _CompletionChunk) -> CompletionEnd:
    cached = (chunk.timings or {}).get("cache_n", 0)
    return CompletionEnd(
        stop_word=chunk.stopping_word if chunk.stop_type == "word" else "",
        is_truncated=chunk.stop_type == "limit",
        input_tokens=chunk.tokens_evaluated,
        cached_tokens=cached if isinstance(cached, int) else 0,
        output_tokens=chunk.tokens_predicted,
    )


def _completion_body(completion: CompletionRequest, request: ModelRequest) -> dict[str, Any]:
    body: dict[str, Any] = {
        "prompt": completion.prompt,
        "stream": True,
        "n_predict": completion.max_tokens,
        "stop": list(completion.stop),
        "cache_prompt": True,
        "temperature": request.temperature or 0.0,
        "seed": _SEED if request.sampling.seed is None else request.sampling.seed,
    }
    if completion.avoids_loops:
        body |= _AVOID_LOOPS
    optional = {
        "json_schema": completion.schema,
        "grammar": completion.grammar,
        "n_probs": None if request.top_logprobs is None else max(1, request.top_logprobs),
        "top_p": request.top_p,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "logit_bias": [[int(token), bias] for token, bias in (request.sampling.logit_bias or {}).items()] or None,
    }
    return body | {name: value for name, value in optional.items() if value is not None}
