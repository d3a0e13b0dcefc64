"""Client of an OpenAI-compatible chat completions API: vLLM, Ollama, llama.cpp, LM Studio and others.

Does the I/O. `request` and `messages` build the request body; `stream` and `calls` parse the streamed answer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any, Literal, TypeAlias, cast

import msgspec

from antwort.api.token_estimate import TokenEstimator
from antwort.engine.ports import Finished, ModelFault, ModelRequest, Piece
from antwort.models.chat.messages import ChatDialect, to_messages
from antwort.models.chat.request import to_body, to_tools
from antwort.models.chat.stream import ChatStream
from antwort.models.tokens import estimate_request, estimate_usage, generated_text
from antwort.models.upstream import Upstream, UpstreamStatusError

Tokenizer: TypeAlias = Literal["auto", "vllm", "llama_cpp", "estimate"]
_BAD_REQUEST_STATUSES = (400, 422)


class ChatCompletions:
    """A model behind a chat completions API. `model` is its name there; by default the name in the client's request.

    `tokenizer` selects how tokens are counted: with vLLM's `/tokenize`, with llama.cpp's, with the one of them that the
    server turns out to have (`auto`), or with an estimate.
    """

    def __init__(
        self,
        upstream: Upstream,
        *,
        model: str | None = None,
        dialect: ChatDialect | None = None,
        tokenizer: Tokenizer = "auto",
    ) -> None:
        self._upstream = upstream
        self._model = model
        self._dialect = dialect or ChatDialect()
        self._include_usage = True
        self._tokenizer: Tokenizer = tokenizer

    async def generate(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        """Send the request and yield the pieces of the streamed answer.

        A server that rejects `stream_options` is asked again without them, and from then on never with them.
        """
        model = self._model or request.model
        stream = ChatStream(
            to_fault=partial(self._upstream.stream_fault, model=request.model),
            top_logprobs=request.top_logprobs,
            stop=request.sampling.stop,
            used_call_ids=_call_ids(request),
        )
        written = TokenEstimator()
        has_ended = False
        while not has_ended:
            include_usage = self._include_usage
            body = to_body(request, model=model, dialect=self._dialect, include_usage=include_usage)
            try:
                async with aclosing(self._upstream.stream("chat/completions", body, lambda: stream.is_done)) as events:
                    async for event in events:
                        for piece in stream.read(event):
                            written.add(generated_text(piece))
                            yield piece
                has_ended = True
            except UpstreamStatusError as refusal:
                if not (include_usage and _rejects_stream_options(refusal)):
                    raise self._upstream.fault(refusal, model=request.model) from refusal
                self._include_usage = False
            except ModelFault:
                if not stream.is_complete:  # after the finish reason, a broken connection loses nothing
                    raise
                has_ended = True
        for piece in stream.close():
            if isinstance(piece, Finished) and stream.usage is None:
                yield msgspec.structs.replace(piece, usage=estimate_usage(request, written.tokens))
            else:
                yield piece

    async def count_tokens(self, request: ModelRequest) -> int:
        """The upstream tokenizer's count; an estimate if the upstream has none or fails."""
        try:
            counted = await self._count(request)
        except (ModelFault, UpstreamStatusError):
            counted = None
        return estimate_request(request) if counted is None else counted

    async def aclose(self) -> None:
        await self._upstream.aclose()

    # ── token counting ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _count(self, request: ModelRequest) -> int | None:
        if self._tokenizer == "estimate":
            return None
        if self._tokenizer == "llama_cpp":
            return await self._count_with_llama_cpp(request)
        return await self._count_with_vllm(request)

    async def _count_with_vllm(self, request: ModelRequest) -> int | None:
        body = {"model": self._model or request.model, "add_generation_prompt": True, **self._prompt(request)}
        try:
            answer = await self._upstream.post(self._url_outside_v1("tokenize"), body)
        except UpstreamStatusError as refusal:
            if self._tokenizer == "auto" and refusal.status in (401, 403, 404, 405, 501):
                self._tokenizer = "estimate"
            return None
        count = _field(answer, "count")
        if isinstance(count, int):
            self._tokenizer = "vllm"
            return count
        if self._tokenizer == "auto" and isinstance(_field(answer, "tokens"), list):
            # llama.cpp ignores `messages` and returns an empty list: it needs the text of the prompt.
            self._tokenizer = "llama_cpp"
            return await self._count_with_llama_cpp(request)
        return None

    async def _count_with_llama_cpp(self, request: ModelRequest) -> int | None:
        answer = await self._upstream.post(self._url_outside_v1("apply-template"), self._prompt(request))
        prompt = _field(answer, "prompt")
        if not isinstance(prompt, str):
            return None
        body = {"content": prompt, "add_special": True, "parse_special": True}
        tokens = _field(await self._upstream.post(self._url_outside_v1("tokenize"), body), "tokens")
        return len(cast("list[object]", tokens)) if isinstance(tokens, list) else None

    def _prompt(self, request: ModelRequest) -> dict[str, Any]:
        """The messages and tools, for the server's chat template."""
        messages = to_messages(request.items, request.instructions, self._dialect)
        return {"messages": messages, **({"tools": to_tools(request)} if request.tools else {})}

    def _url_outside_v1(self, path: str) -> str:
        return f"{self._upstream.base_url.removesuffix('/v1')}/{path}"


def _rejects_stream_options(refusal: UpstreamStatusError) -> bool:
    return refusal.status in _BAD_REQUEST_STATUSES and "stream_options" in refusal.error.text


def _call_ids(request: ModelRequest) -> set[str]:
    return {str(item.raw["call_id"]) for item in request.items if "call_id" in item.raw}


def _field(answer: object, name: str) -> object:
    return cast("dict[str, object]", answer).get(name) if isinstance(answer, dict) else None
