from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from fake_llama_server import FAKE_SERVER_COMMAND, LlamaReply

from antwort.config import ChatCompletionsModel, EmbeddedModel, ModelsSettings, ResponsesModel, ScriptedModel
from antwort.engine.ports import ChosenModel
from antwort.models import ChatCompletions, Scripted, Upstream, parse_script
from antwort.models.discovery import (
    LOCAL_SERVERS,
    Discovery,
    LocalServer,
    NoModels,
    check_model,
    discover_models,
    list_model_names,
)
from antwort.models.embedded import DEFAULT_MODEL, Embedded, Supervisor, WeightsCache
from antwort.models.embedded.weights import CACHE_VARIABLE, get_weights
from antwort.models.registry import open_models
from antwort.telemetry import Metrics

pytestmark = pytest.mark.anyio


class FakeModelServer:
    """A server with `GET /v1/models`."""

    def __init__(self) -> None:
        self.answer: bytes = listing("small", "large")
        self.status = 200
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.hold = threading.Event()
        self.hold.set()
        self.port = 0

    @property
    def address(self) -> LocalServer:
        return LocalServer("Ollama", self.port)


def listing(*names: str, owner: str = "library") -> bytes:
    return json.dumps({"object": "list", "data": [{"id": name, "owned_by": owner} for name in names]}).encode()


@contextmanager
def running_server() -> Iterator[FakeModelServer]:
    server = FakeModelServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.hold.wait(30)
            server.requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            self.send_response(server.status)
            self.end_headers()
            self.wfile.write(server.answer)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as http.server calls it
            pass

    http_server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.port = http_server.server_port
    thread = threading.Thread(target=http_server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.hold.set()
        http_server.shutdown()
        thread.join(10)
        http_server.server_close()


@pytest.fixture
def server():
    with running_server() as server:
        yield server


@pytest.fixture
def environment_without_models(tmp_path):
    """Environment variables without an upstream and with an empty weights cache."""
    return {CACHE_VARIABLE: str(tmp_path / "models")}


async def discover(environment, *local_servers: LocalServer, **more) -> Discovery:
    return await discover_models(ModelsSettings(**more), environment, local_servers=local_servers)


async def test_configured_models_are_used_without_any_request(server, environment_without_models):
    named = {"m": ScriptedModel(script="x")}
    found = await discover({**environment_without_models, "OPENAI_API_KEY": "secret"}, server.address, named=named)

    assert (found.models.named, found.reason) == (named, "from the configuration")
    assert server.requests == []


async def test_an_upstream_of_the_environment_precedes_local_servers(server, environment_without_models):
    url = f"http://127.0.0.1:{server.port}/v1"
    with running_server() as other:
        found = await discover(
            {**environment_without_models, "OPENAI_API_KEY": "secret", "OPENAI_BASE_URL": url}, other.address
        )
        assert other.requests == []

    assert found.models.named["small"] == ChatCompletionsModel(
        base_url=url, model="small", api_key_env="OPENAI_API_KEY"
    )
    assert list(found.models.named) == ["small", "large"]
    assert found.reason == f"OPENAI_BASE_URL is set, and 127.0.0.1:{server.port} answers"
    path, headers = server.requests[0]
    assert (path, headers["authorization"]) == ("/v1/models", "Bearer secret")


async def test_openai_model_selects_the_default(server, environment_without_models):
    server.answer = listing("text-embedding-3", "gpt-a", "gpt-b")
    environment = {**environment_without_models, "OPENAI_BASE_URL": f"http://127.0.0.1:{server.port}/v1"}

    assert (await discover(environment)).models.default == "gpt-a"
    assert (await discover({**environment, "OPENAI_MODEL": "gpt-b"})).models.default == "gpt-b"
    assert (await discover({**environment, "OPENAI_MODEL": "unknown"})).models.default == "gpt-a"


async def test_unknown_names_get_the_default_of_discovered_models_unless_that_is_off(
    server, environment_without_models
):
    for setting, expected in ((None, "small"), (True, "small"), (False, None)):
        found = await discover(environment_without_models, server.address, default_for_unknown=setting)
        models = open_models(found.models, Metrics(), environment_without_models)

        assert models.names() == ["small", "large"]
        assert models.resolve("gpt-6") == expected
        await models.aclose()


async def test_the_first_local_server_with_models_is_used(server, environment_without_models, unused_port):
    with running_server() as empty, running_server() as later:
        empty.answer = listing()
        found = await discover(
            environment_without_models, LocalServer("x", unused_port), empty.address, server.address, later.address
        )

    model = found.models.named["small"]
    assert isinstance(model, ChatCompletionsModel)
    assert model.base_url == f"http://127.0.0.1:{server.port}/v1"
    assert found.reason == f"Ollama answers on port {server.port}"
    assert found.models.default == "small"
    assert "authorization" not in server.requests[0][1]


async def test_an_upstream_that_does_not_answer_is_skipped_and_reported(
    server, environment_without_models, unused_port
):
    environment = {**environment_without_models, "OPENAI_BASE_URL": f"http://127.0.0.1:{unused_port}/v1"}
    found = await discover(environment, server.address)

    assert list(found.models.named) == ["small", "large"]
    assert found.reason.startswith(f"OPENAI_BASE_URL is set, but 127.0.0.1:{unused_port} does not answer; Ollama")


async def test_this_server_and_other_antwort_servers_are_skipped(server, environment_without_models):
    url = f"http://127.0.0.1:{server.port}/v1"
    itself = await discover_models(
        ModelsSettings(),
        {**environment_without_models, "OPENAI_BASE_URL": url},
        own_port=server.port,
        local_servers=[server.address],
    )
    assert (itself.models.named, server.requests) == ({}, [])
    assert "this server itself" in itself.reason

    server.answer = listing("m", owner="antwort")
    other = await discover({**environment_without_models, "OPENAI_BASE_URL": url}, server.address)
    assert other.models.named == {}
    assert "is another antwort" in other.reason


async def test_without_a_server_the_embedded_model_is_used(environment_without_models, tmp_path):
    weights, cache = get_weights(DEFAULT_MODEL), WeightsCache(tmp_path / "models")
    cache.folder.mkdir()
    with cache.path(weights).open("wb") as file:
        file.truncate(weights.size)  # a sparse file of the right size; it is not loaded
    found = await discover(environment_without_models)

    assert found.models.named == {DEFAULT_MODEL: EmbeddedModel()}
    assert found.reason == "no other model found, so the embedded one is used"


async def test_without_any_model_the_reason_lists_the_options(environment_without_models):
    found = await discover(environment_without_models)

    assert found.models.named == {}
    assert "Options: `antwort model pull" in found.reason


async def test_discover_false_sends_no_request(server, environment_without_models):
    found = await discover({**environment_without_models, "OPENAI_API_KEY": "secret"}, server.address, discover=False)

    assert (found.models.named, server.requests) == ({}, [])


@pytest.mark.parametrize(
    "answer, status, message",
    [
        (b"<html>", 200, "no list"),
        (b'{"data": {"id": 1}}', 200, "no list"),
        (b"[]", 200, "no list"),
        (b'{"data": [{"id": 7}, {}]}', 200, "no models"),
        (b"x" * 5_000_000, 200, "too much"),
        (b"{}", 401, "answers 401"),
    ],
)
async def test_an_invalid_list_of_models_raises_no_models(server, answer, status, message):
    server.answer, server.status = answer, status
    with pytest.raises(NoModels, match=message):
        await list_model_names(f"http://127.0.0.1:{server.port}/v1", None, 5)


@pytest.mark.parametrize("address", ["http://[", "nonsense", "http://127.0.0.1:99999/v1"])
async def test_an_invalid_url_raises_no_models(address):
    with pytest.raises(NoModels, match="does not answer"):
        await list_model_names(address, None, 5)


async def test_a_server_that_never_responds_times_out(server):
    server.hold.clear()
    async with asyncio.timeout(20):
        with pytest.raises(NoModels, match="does not answer"):
            await list_model_names(f"http://127.0.0.1:{server.port}/v1", None, 0.2)


def test_local_servers_and_ports():
    assert {known.kind: known.port for known in LOCAL_SERVERS} == {
        "Ollama": 11434,
        "llama.cpp": 8080,
        "vLLM": 8000,
        "LM Studio": 1234,
    }


# ── check_model ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_upstream_model_is_usable_if_the_server_lists_it(server):
    url = f"http://127.0.0.1:{server.port}/v1"
    model = ChatCompletions(Upstream(url))
    settings = ChatCompletionsModel(base_url=url)
    has = await check_model(ChosenModel("a", model, "small"), settings, {})
    lacks = await check_model(ChosenModel("a", model, "huge"), settings, {})
    server.status = 500
    fails = await check_model(ChosenModel("a", model, "small"), ResponsesModel(base_url=url), {})
    await model.aclose()

    assert (has.is_usable, lacks.is_usable, fails.is_usable) == (True, False, False)
    assert "does not list huge" in lacks.detail
    assert "answers 500" in fails.detail


async def test_an_embedded_model_is_usable_if_it_starts(tmp_path):
    script = LlamaReply().write(tmp_path / "reply.json")
    for command, expected in ((FAKE_SERVER_COMMAND, True), (("false",), False)):
        model = Embedded(Supervisor(script, command=command))
        state = await check_model(ChosenModel("a", model, "a"), EmbeddedModel(), {})
        await model.aclose()
        assert state.is_usable is expected
        assert state.detail


async def test_a_script_works():
    model = Scripted(parse_script("answers: []"))
    assert (await check_model(ChosenModel("a", model, "a"), ScriptedModel(script="x"), {})).is_usable
