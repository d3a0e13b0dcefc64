"""Any server with OpenAI's chat completions: vLLM, Ollama, llama.cpp, LM Studio and the rest.

This is the driver: it asks, reads and lets go. What is sent is made in `chat_request`
and `chat_messages`, what comes is understood in `chat_stream` and `calls`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, Literal, TypeAlias, cast

from antwort.engine.ports import Finished, ModelFault, ModelRequest, Piece
from antwort.models.chat.messages import ChatDialect, to_messages
from antwort.models.chat.request import to_body, to_tools
from antwort.models.chat.stream import ChatStream
from antwort.models.tokens import Meter, estimate, estimate_usage, text_of
from antwort.models.upstream import Timeouts, Upstream, UpstreamStatusError
from antwort.net.sse import ServerEvent

Tokenizer: TypeAlias = Literal["auto", "vllm", "llama_cpp", "estimate"]
_BAD_REQUESTS = (400, 422)


class ChatCompletions:
    """A model behind a chat server. `model` is its name there; without one it is asked for as the client names it.

    `tokenizer` says who counts tokens: vLLM's `/tokenize`, llama.cpp's, whichever of
    them the server turns out to have, or nobody, and then the number is an estimate.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        dialect: ChatDialect | None = None,
        timeouts: Timeouts | None = None,
        tokenizer: Tokenizer = "auto",
        max_event: int = 16 * 1024 * 1024,
        ca_file: str | None = None,
    ) -> None:
        self._upstream = Upstream(
            base_url, api_key=api_key, headers=headers, timeouts=timeouts, max_event=max_event, ca_file=ca_file
        )
        self._model = model
        self._dialect = dialect or ChatDialect()
        self._include_usage = True
        self._tokenizer: Tokenizer = tokenizer

    async def generate(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        """Ask, and pass on what comes."""
        stream = ChatStream(model=request.model, logprobs=request.top_logprobs, taken=_call_ids(request))
        meter = Meter()
        async with aclosing(self._events(request, lambda: stream.done)) as events:
            try:
                async for event in events:
                    for piece in stream.read(event):
                        meter.add(text_of(piece))
                        yield piece
            except ModelFault:
                if not stream.complete:  # a connection that breaks after the last word has done its work
                    raise
        for piece in stream.close():
            if isinstance(piece, Finished) and stream.usage is None:
                yield Finished(piece.reason, estimate_usage(request, meter.tokens))
            else:
                yield piece

    async def count_tokens(self, request: ModelRequest) -> int:
        """As the upstream's tokenizer counts, or else an estimate."""
        try:
            counted = await self._count(request)
        except (ModelFault, UpstreamStatusError):
            counted = None
        return estimate(request) if counted is None else counted

    async def aclose(self) -> None:
        await self._upstream.aclose()

    async def _events(self, request: ModelRequest, over: Callable[[], bool]) -> AsyncGenerator[ServerEvent, None]:
        """Ask; once more without `stream_options` where the server takes offence at them, and never with them again."""
        options = self._include_usage
        while True:
            model = self._model or request.model
            body = to_body(request, model=model, dialect=self._dialect, include_usage=options)
            try:
                async with aclosing(self._upstream.stream("chat/completions", body, over)) as events:
                    async for event in events:
                        yield event
            except UpstreamStatusError as refusal:
                if not (options and _takes_offence(refusal)):
                    raise self._upstream.fault(refusal, model=request.model) from refusal
                self._include_usage = options = False
            else:
                return

    # ── counting ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _count(self, request: ModelRequest) -> int | None:
        if self._tokenizer == "estimate":
            return None
        if self._tokenizer == "llama_cpp":
            return await self._count_with_llama_cpp(request)
        return await self._count_with_vllm(request)

    async def _count_with_vllm(self, request: ModelRequest) -> int | None:
        body: dict[str, Any] = {
            "model": self._model or request.model,
            "messages": to_messages(request.items, request.instructions, self._dialect),
            "add_generation_prompt": True,
        }
        if request.tools:
            body["tools"] = to_tools(request)
        try:
            answer = await self._upstream.post(self._beside_v1("tokenize"), body)
        except UpstreamStatusError as refusal:
            if self._tokenizer == "auto" and refusal.status in (401, 403, 404, 405, 501):
                self._tokenizer = "estimate"
            return None
        count = _field(answer, "count")
        if isinstance(count, int):
            self._tokenizer = "vllm"
            return count
        if self._tokenizer == "auto" and isinstance(_field(answer, "tokens"), list):
            # llama.cpp overlooks messages and answers with no tokens: it wants text.
            self._tokenizer = "llama_cpp"
            return await self._count_with_llama_cpp(request)
        return None

    async def _count_with_llama_cpp(self, request: ModelRequest) -> int | None:
        body: dict[str, Any] = {"messages": to_messages(request.items, request.instructions, self._dialect)}
        if request.tools:
            body["tools"] = to_tools(request)
        prompt = _field(await self._upstream.post(self._beside_v1("apply-template"), body), "prompt")
        if not isinstance(prompt, str):
            return None
        asked = {"content": prompt, "add_special": True, "parse_special": True}
        tokens = _field(await self._upstream.post(self._beside_v1("tokenize"), asked), "tokens")
        return len(cast("list[object]", tokens)) if isinstance(tokens, list) else None

    def _beside_v1(self, path: str) -> str:
        return f"{self._upstream.base_url.removesuffix('/v1')}/{path}"


def _takes_offence(refusal: UpstreamStatusError) -> bool:
    return refusal.status in _BAD_REQUESTS and "stream_options" in refusal.error.text


def _call_ids(request: ModelRequest) -> set[str]:
    return {str(item.raw["call_id"]) for item in request.items if "call_id" in item.raw}


def _field(answer: object, name: str) -> object:
    return cast("dict[str, object]", answer).get(name) if isinstance(answer, dict) else None
