from __future__ import annotations

import asyncio
import tracemalloc
from contextlib import aclosing

import pytest

from antwort.api.items import read
from antwort.engine.ports import FunctionSpec, ModelFault, ModelRequest, TextPiece
from antwort.models import ChatCompletions, RetryingModel, Upstream
from antwort.models.chat.messages import ChatDialect
from antwort.models.tokens import estimate_request
from antwort.models.upstream import Timeouts
from antwort.testing.model import LONG_TEXT, AnswerCall, ModelAnswer, collect, fold, make_request

pytestmark = pytest.mark.anyio

KEY = "sk-very-secret"
HELLO = ModelAnswer(text="Hello")


@pytest.fixture
def model(upstream):
    return ChatCompletions(
        Upstream(upstream.url + "/", api_key=KEY, timeouts=Timeouts(read=1.0)), model="upstream-name"
    )


async def ask(model, request=None) -> ModelAnswer:
    try:
        return fold(await collect(model, request or make_request()))
    finally:
        await model.aclose()


async def get_fault(model) -> ModelFault:
    with pytest.raises(ModelFault) as caught:
        await ask(model)
    return caught.value


async def test_request(upstream, model):
    upstream.set_replies(upstream.chat(HELLO))

    assert (await ask(model)).text == "Hello"

    [request] = upstream.requests
    assert request.path == "v1/chat/completions"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["accept-encoding"] == "identity"
    assert (request.body["model"], request.body["stream"]) == ("upstream-name", True)


async def test_logprobs(upstream, model):
    entry = {"token": "Hi", "logprob": -0.25, "top_logprobs": [{"token": "Hi", "logprob": -0.25}] * 20}
    choice = {"index": 0, "delta": {"content": "Hi"}, "logprobs": {"content": [entry]}, "finish_reason": "stop"}
    upstream.set_replies(upstream.sse({"choices": [choice]}, "[DONE]"))
    pieces = await collect(model, ModelRequest(model="m", items=[], top_logprobs=2))
    await model.aclose()

    assert (upstream.requests[0].body["logprobs"], upstream.requests[0].body["top_logprobs"]) == (True, 2)
    token = {"token": "Hi", "bytes": [72, 105], "logprob": -0.25}
    assert pieces[0] == TextPiece("Hi", ({**token, "top_logprobs": [token, token]},))


async def test_the_default_model_name_is_the_clients(upstream):
    upstream.set_replies(upstream.chat(HELLO))
    await ask(ChatCompletions(Upstream(upstream.url, headers={"x-team": "a"})))

    assert upstream.requests[0].body["model"] == "any"
    assert upstream.requests[0].headers["x-team"] == "a"
    assert "authorization" not in upstream.requests[0].headers


# ── variants ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_rejected_stream_options_are_never_sent_again(upstream, model):
    rejection = upstream.json({"error": {"message": "Unrecognized request argument: stream_options"}}, 400)
    plain = upstream.sse({"choices": [{"delta": {"content": "Hello"}, "finish_reason": "stop"}]}, "[DONE]")
    upstream.set_replies(rejection, plain)

    first = fold(await collect(model, make_request()))
    await ask(model)

    assert ["stream_options" in request.body for request in upstream.requests] == [True, False, False]
    assert first.text == "Hello"
    assert first.usage.output_tokens > 0  # estimated


async def test_an_answer_that_is_not_streamed(upstream, model):
    message = {"role": "assistant", "content": "Hello"}
    upstream.set_replies(upstream.json({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}))

    assert (await ask(model)).text == "Hello"


async def test_calls_as_sent_by_ollama(upstream, model):
    calls = [{"id": f"call_{at}", "index": 0, "function": {"name": "f", "arguments": f'{{"a":{at}}}'}} for at in (1, 2)]
    chunks = [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "", "tool_calls": [one]}}]} for one in calls
    ]
    upstream.set_replies(
        upstream.sse(*chunks, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, "[DONE]")
    )
    answer = await ask(model)

    assert answer.calls == (AnswerCall("f", '{"a":1}', "call_1"), AnswerCall("f", '{"a":2}', "call_2"))
    assert answer.reason == "calls"


async def test_call_ids_of_the_history_are_not_reused(upstream, model):
    upstream.set_replies(upstream.chat(ModelAnswer(calls=(AnswerCall("f", "{}"),), reason="calls")))
    history = [
        read({"type": "function_call", "call_id": "call_0", "name": "f", "arguments": "{}"}),
        read({"type": "function_call_output", "call_id": "call_0", "output": "x"}),
    ]
    answer = await ask(model, ModelRequest(model="any", items=history))

    assert answer.calls[0].call_id != "call_0"


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_any_chunk_size(upstream, model, size):
    full = upstream.chat(
        ModelAnswer(reasoning="Hm…", text="Grüße 🎈", calls=(AnswerCall("f", '{"a": "ß"}'),), reason="calls")
    )
    source = b": hello\r\n\r\n" + b"".join(full.chunks).replace(b"\n\n", b"\r\n\r\n")
    upstream.set_replies(type(full)([source[at : at + size] for at in range(0, len(source), size)]))
    answer = await ask(model)

    assert (answer.reasoning, answer.text, answer.calls[0].arguments) == ("Hm…", "Grüße 🎈", '{"a": "ß"}')


async def test_a_connection_that_breaks_before_the_usage_is_no_fault(upstream, model):
    reply = upstream.chat(HELLO)
    reply.chunks, reply.disconnect = reply.chunks[:-2], True
    upstream.set_replies(reply)

    assert (await ask(model)).text == "Hello"


# ── faults ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "status, body, code, fault_status",
    [
        (401, {"error": {"message": f"Incorrect API key provided: {KEY}"}}, "server_error", 502),
        (404, {"error": {"message": "model 'upstream-name' not found"}}, "model_not_found", 400),
        (400, {"error": {"code": "context_length_exceeded", "message": "…"}}, "context_length_exceeded", 400),
        (400, {"error": {"message": f"bad field for {KEY} at http://10.0.0.7"}}, "invalid_prompt", 400),
        (429, {"error": {"message": "slow down"}}, "rate_limit_exceeded", 429),
        (500, {"error": {"message": "CUDA error on 10.0.0.7"}}, "server_error", 502),
    ],
)
async def test_error_responses_are_mapped_without_secrets(upstream, model, status, body, code, fault_status):
    upstream.set_replies(upstream.json(body, status, {"retry-after": "3"}))
    fault = await get_fault(model)

    assert (fault.code, fault.status) == (code, fault_status)
    assert not any(secret in str(fault.__dict__) for secret in (KEY, "10.0.0.7", upstream.root))


async def test_a_large_error_body_is_not_read_completely(upstream, model):
    reply = upstream.json(b"x", 500)
    reply.chunks = [b"x" * 65536] * 2000
    upstream.set_replies(reply)

    assert (await get_fault(model)).status == 502
    assert upstream.sent_chunks < 2000


async def test_connection_refused(unused_port):
    model = ChatCompletions(Upstream(f"http://127.0.0.1:{unused_port}/v1"))
    fault = await get_fault(model)

    assert (fault.status, fault.retryable) == (502, True)
    assert str(unused_port) not in fault.message


async def test_invalid_url():
    fault = await get_fault(ChatCompletions(Upstream("not-an-address")))

    assert (fault.status, fault.retryable) == (502, False)


async def test_read_timeout(upstream):
    upstream.set_replies(upstream.sse({"choices": []}, {"choices": []}, pause=5.0))

    assert (await get_fault(ChatCompletions(Upstream(upstream.url, timeouts=Timeouts(read=0.1))))).status == 504


async def test_a_broken_connection_is_retryable(upstream, model):
    reply = upstream.chat(HELLO)
    reply.chunks, reply.disconnect = reply.chunks[:2], True
    upstream.set_replies(reply)

    assert (await get_fault(model)).retryable


async def test_a_truncated_answer_is_a_fault(upstream, model):
    reply = upstream.chat(HELLO)
    reply.chunks = reply.chunks[:2]
    upstream.set_replies(reply)

    assert "ended before" in (await get_fault(model)).message


@pytest.mark.parametrize("data", ["<html>", "{", '{"choices": 7}', '"hello"'])
async def test_malformed_events(upstream, model, data):
    upstream.set_replies(upstream.sse(data))

    assert "could not be read" in (await get_fault(model)).message


async def test_an_html_page_instead_of_an_answer(upstream, model):
    page = upstream.json(b"<html>Welcome to the router</html>")
    page.content_type = "text/html"
    upstream.set_replies(page)

    assert "could not be read" in (await get_fault(model)).message


async def test_an_error_event_within_the_stream(upstream, model):
    upstream.set_replies(
        upstream.sse({"choices": [{"delta": {"content": "So"}}]}, {"error": {"message": KEY, "code": 500}})
    )
    fault = await get_fault(model)

    assert KEY not in fault.message


@pytest.mark.parametrize("content_type", ["text/event-stream", "application/json"])
async def test_an_endless_line_uses_bounded_memory(upstream, content_type):
    reply = upstream.sse()
    reply.chunks, reply.content_type = [b"data: " + b"x" * 65530] * 3000, content_type
    upstream.set_replies(reply)
    model = ChatCompletions(Upstream(upstream.url, max_event=1_000_000))

    tracemalloc.start()
    try:
        fault = await get_fault(model)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert "could not be read" in fault.message
    assert peak < 20_000_000


async def test_backpressure(upstream, model):
    chunk = {"choices": [{"delta": {"content": "x" * 10_000}}]}
    upstream.set_replies(upstream.sse(*[chunk] * 5000))

    async with aclosing(model.generate(make_request())) as pieces:
        await anext(pieces)
        await asyncio.sleep(0.5)
        assert upstream.sent_chunks < 4000
    await model.aclose()


async def test_closing_the_generator_disconnects(upstream, model):
    upstream.set_replies(upstream.sse(*[{"choices": [{"delta": {"content": "x"}}]}] * 500, pause=0.02))

    async with aclosing(model.generate(make_request())) as pieces:
        assert await anext(pieces) == TextPiece("x")
    await model.aclose()

    assert await asyncio.to_thread(upstream.client_disconnected.wait, 5)


async def test_retries_429_and_503_until_success(upstream, model, instrumentation):
    upstream.set_replies(upstream.json({}, 429, {"retry-after": "1"}), upstream.json({}, 503), upstream.chat(HELLO))
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    assert (await ask(RetryingModel(model, instrumentation=instrumentation, sleep=sleep))).text == "Hello"
    assert slept[0] == 1.0
    assert len(upstream.requests) == 3


async def test_concurrent_answers(upstream):
    upstream.set_replies(upstream.chat(ModelAnswer(text=LONG_TEXT[:500])))
    model = ChatCompletions(Upstream(upstream.url))
    answers = await asyncio.gather(*(collect(model, make_request()) for _ in range(150)))
    await model.aclose()

    assert {fold(pieces).text for pieces in answers} == {LONG_TEXT[:500]}


# ── count_tokens───────────────────────────────────────────────────────────────────────────────────────────────────────

TOOL = FunctionSpec("f", None, None)


async def test_count_tokens_with_vllm(upstream, model):
    upstream.set_replies(upstream.json({"count": 42, "max_model_len": 4096, "tokens": [1]}), path="tokenize")

    assert await model.count_tokens(make_request("Hello", TOOL)) == 42
    assert upstream.requests[0].body["messages"] == [{"role": "user", "content": "Hello"}]
    assert len(upstream.requests[0].body["tools"]) == 1
    await model.aclose()


async def test_count_tokens_with_llama_cpp(upstream, model):
    upstream.set_replies(upstream.json({"tokens": []}), upstream.json({"tokens": [1, 2, 3]}), path="tokenize")
    upstream.set_replies(upstream.json({"prompt": "<|user|>Hello"}), path="apply-template")

    assert await model.count_tokens(make_request("Hello", TOOL)) == 3
    assert await model.count_tokens(make_request()) == 3
    assert [request.path for request in upstream.requests] == [
        "tokenize",
        "apply-template",
        "tokenize",
        "apply-template",
        "tokenize",
    ]
    await model.aclose()


async def test_a_server_without_tokenizer_is_asked_once(upstream, model):
    assert await model.count_tokens(make_request()) == estimate_request(make_request())
    assert await model.count_tokens(make_request()) == estimate_request(make_request())
    assert len(upstream.requests) == 1
    await model.aclose()


@pytest.mark.parametrize("answer", [{"unknown": 1}, 7])
async def test_an_invalid_count_falls_back_to_the_estimate(upstream, model, answer):
    upstream.set_replies(upstream.json(answer), path="tokenize")
    assert await model.count_tokens(make_request()) == estimate_request(make_request())
    upstream.set_replies(upstream.json({"error": {}}, 500), path="tokenize")
    assert await model.count_tokens(make_request()) == estimate_request(make_request())
    await model.aclose()


async def test_tokenizer_estimate_sends_no_request(upstream):
    model = ChatCompletions(Upstream(upstream.url), tokenizer="estimate", dialect=ChatDialect())
    assert await model.count_tokens(make_request()) == estimate_request(make_request())
    assert upstream.requests == []
    await model.aclose()
