from __future__ import annotations

import json
import re
import subprocess
import sys

import httpx2
import pytest
from local_weights import find_local_weights
from waiting import wait_until

from antwort.api.items import read
from antwort.api.requests import JsonSchemaFormat
from antwort.engine.ports import FunctionSpec, ModelFault, ModelRequest, TextPiece
from antwort.models.embedded import Embedded, Supervisor
from antwort.models.embedded.supervisor import SERVER_COMMAND
from antwort.testing.model import WEATHER_TOOL, collect, fold, make_request

CODE = FunctionSpec("code", "Run Python.", {"type": "object", "properties": {"code": {"type": "string"}}})
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture
def weights():
    return find_local_weights()


@pytest.mark.anyio
async def test_invalid_weights_are_a_fault(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"not weights")
    supervisor = Supervisor(tmp_path / "x.gguf")
    with pytest.raises(ModelFault, match="did not start"):
        await supervisor.upstream()
    await supervisor.aclose()


@pytest.mark.model
def test_listens_on_loopback_requires_the_key_and_exits_at_eof(weights):
    settings = {"weights": str(weights), "key": "secret", "context": 512, "parallel": 1, "threads": 1}
    with subprocess.Popen(
        SERVER_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(settings).encode() + b"\n")
        process.stdin.flush()
        address = json.loads(process.stdout.readline())["address"]
        body = {"content": "Hello"}
        with httpx2.Client(base_url=address, trust_env=False, timeout=60) as client:
            rejected = client.post("/tokenize", json=body)
            accepted = client.post("/tokenize", json=body, headers={"authorization": "Bearer secret"})
        process.stdin.close()
        assert process.wait(30) == 0

    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", address)
    assert rejected.status_code == 401
    assert len(accepted.json()["tokens"]) == 1


@pytest.mark.model
@pytest.mark.anyio
async def test_a_real_model_answers_counts_tokens_calls_tools_and_follows_schemas(weights):
    model = Embedded(Supervisor(weights, context=2048, parallel=1))
    try:
        with_logprobs = ModelRequest(model="m", items=make_request("Say hello in one word.").items, top_logprobs=2)
        pieces = await collect(model, with_logprobs)
        answer = fold(pieces)
        counted = await model.count_tokens(make_request("Say hello in one word."))
        again = fold(await collect(model, make_request("Say hello in one word.")))
        required = ModelRequest(
            model="m", items=make_request("The weather in Rome?").items, tools=(WEATHER_TOOL,), choice="required"
        )
        called = fold(await collect(model, required))
        code = fold(await collect(model, make_request("What is the 30th prime number times 17?", CODE)))
        items = [read({"role": "user", "content": "Anna is 31 years old."})]
        output_format = JsonSchemaFormat(name="person", schema=SCHEMA)
        structured = fold(await collect(model, ModelRequest(model="m", items=items, format=output_format)))
        truncated = fold(await collect(model, ModelRequest(model="m", items=items, max_output_tokens=2)))
        with pytest.raises(ModelFault) as caught:
            await collect(model, make_request("word " * 4000))
    finally:
        await model.aclose()

    logprobs = [entry for piece in pieces if isinstance(piece, TextPiece) for entry in piece.logprobs]
    assert "".join(entry["token"] for entry in logprobs) == answer.text
    assert {len(entry["top_logprobs"]) for entry in logprobs} == {2}
    assert "hello" in answer.text.lower()
    assert answer.usage.input_tokens == counted
    assert again.text == answer.text
    assert [(call.name, json.loads(call.arguments)["city"]) for call in called.calls] == [("get_weather", "Rome")]
    assert [call.name for call in code.calls] == ["code"]
    assert "17" in json.loads(code.calls[0].arguments)["code"]
    assert json.loads(structured.text) == {"name": "Anna", "age": 31}
    assert (truncated.reason, truncated.usage.output_tokens) == ("length", 2)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.model
def test_exits_when_its_parent_is_killed(weights):
    parent = f"""
import subprocess, sys
child = subprocess.Popen({SERVER_COMMAND!r}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
child.stdin.write(sys.argv[1].encode() + b"\\n")
child.stdin.flush()
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""
    settings = {"weights": str(weights), "key": "secret", "context": 512, "parallel": 1, "threads": 1}
    with subprocess.Popen(
        [sys.executable, "-c", parent, json.dumps(settings)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.kill()
    wait_until(lambda: _has_exited(child))


def _has_exited(pid: int) -> bool:
    listed = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return listed.stdout.strip() in ("", "Z")
