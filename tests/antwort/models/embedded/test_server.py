from __future__ import annotations

import json
import re
import subprocess
import sys

import httpx2
import pytest
from local_weights import weights_here
from waiting import wait_until

from antwort.api.items import read
from antwort.api.requests import JsonSchemaFormat
from antwort.engine.ports import FunctionSpec, ModelFault, ModelRequest, TextPiece
from antwort.models.embedded import Embedded, Supervisor
from antwort.models.embedded.supervisor import COMMAND
from antwort.testing.model import WEATHER, asking, collect, fold

CODE = FunctionSpec("code", "Run Python.", {"type": "object", "properties": {"code": {"type": "string"}}})
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture
def weights():
    return weights_here()


@pytest.mark.anyio
async def test_weights_that_are_none_are_a_fault(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"no weights")
    supervisor = Supervisor(tmp_path / "x.gguf")
    with pytest.raises(ModelFault, match="did not start"):
        await supervisor.upstream()
    await supervisor.aclose()


@pytest.mark.model
def test_it_listens_on_loopback_only_answers_with_the_key_only_and_ends_with_its_input(weights):
    settings = {"weights": str(weights), "key": "secret", "context": 512, "parallel": 1, "threads": 1}
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(settings).encode() + b"\n")
        process.stdin.flush()
        address = json.loads(process.stdout.readline())["address"]
        asked = {"content": "Hello"}
        with httpx2.Client(base_url=address, trust_env=False, timeout=60) as client:
            refused = client.post("/tokenize", json=asked)
            told = client.post("/tokenize", json=asked, headers={"authorization": "Bearer secret"})
        process.stdin.close()
        assert process.wait(30) == 0

    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", address)
    assert refused.status_code == 401
    assert len(told.json()["tokens"]) == 1


@pytest.mark.model
@pytest.mark.anyio
async def test_a_real_model_speaks_counts_calls_and_fills_schemas(weights):
    model = Embedded(Supervisor(weights, context=2048, parallel=1))
    try:
        likely = ModelRequest(model="m", items=asking("Say hello in one word.").items, top_logprobs=2)
        pieces = await collect(model, likely)
        spoken = fold(pieces)
        counted = await model.count_tokens(asking("Say hello in one word."))
        again = fold(await collect(model, asking("Say hello in one word.")))
        must = ModelRequest(model="m", items=asking("The weather in Rome?").items, tools=(WEATHER,), choice="required")
        called = fold(await collect(model, must))
        code = fold(await collect(model, asking("What is the 30th prime number times 17?", CODE)))
        about = [read({"role": "user", "content": "Anna is 31 years old."})]
        wanted = JsonSchemaFormat(name="person", schema=SCHEMA)
        filled = fold(await collect(model, ModelRequest(model="m", items=about, format=wanted)))
        cut = fold(await collect(model, ModelRequest(model="m", items=about, max_output_tokens=2)))
        with pytest.raises(ModelFault) as caught:
            await collect(model, asking("word " * 4000))
    finally:
        await model.aclose()

    told = [entry for piece in pieces if isinstance(piece, TextPiece) for entry in piece.logprobs]
    assert "".join(entry["token"] for entry in told) == spoken.text
    assert {len(entry["top_logprobs"]) for entry in told} == {2}
    assert "hello" in spoken.text.lower()
    assert spoken.usage.input_tokens == counted
    assert again.text == spoken.text
    assert [(call.name, json.loads(call.arguments)["city"]) for call in called.calls] == [("get_weather", "Rome")]
    assert [call.name for call in code.calls] == ["code"]
    assert "17" in json.loads(code.calls[0].arguments)["code"]
    assert json.loads(filled.text) == {"name": "Anna", "age": 31}
    assert (cut.reason, cut.usage.output_tokens) == ("length", 2)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.model
def test_it_ends_when_its_parent_is_gone(weights):
    parent = f"""
import subprocess, sys
child = subprocess.Popen({COMMAND!r}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
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
    wait_until(lambda: _gone(child))


def _gone(pid: int) -> bool:
    listed = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return listed.stdout.strip() in ("", "Z")
