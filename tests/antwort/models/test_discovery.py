from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from fake_llama_server import COMMAND, Reply

from antwort.config import ChatCompletionsModel, EmbeddedModel, ModelsSettings, ResponsesModel, ScriptedModel
from antwort.engine.ports import ChosenModel
from antwort.models import ChatCompletions, Scripted, parse_script
from antwort.models.discovery import PLACES, Found, Place, Silent, find_models, look_at, names_at
from antwort.models.embedded import DEFAULT, Cache, Embedded, Supervisor
from antwort.models.embedded.weights import PLACE, known

pytestmark = pytest.mark.anyio


class Lister:
    """A server that lists models."""

    def __init__(self) -> None:
        self.answer: bytes = listing("small", "large")
        self.status = 200
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.hold = threading.Event()
        self.hold.set()
        self.port = 0

    @property
    def place(self) -> Place:
        return Place("Ollama", self.port)


def listing(*names: str, owner: str = "library") -> bytes:
    return json.dumps({"object": "list", "data": [{"id": name, "owned_by": owner} for name in names]}).encode()


@contextmanager
def listening() -> Iterator[Lister]:
    lister = Lister()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            lister.hold.wait(30)
            lister.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            self.send_response(lister.status)
            self.end_headers()
            self.wfile.write(lister.answer)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as http.server calls it
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    lister.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield lister
    finally:
        lister.hold.set()
        server.shutdown()
        thread.join(10)
        server.server_close()


@pytest.fixture
def lister():
    with listening() as lister:
        yield lister


@pytest.fixture
def nothing(tmp_path):
    """Variables of a machine that has nothing."""
    return {PLACE: str(tmp_path / "models")}


async def look(environment, *places: Place, **more) -> Found:
    return await find_models(ModelsSettings(**more), environment, places=places)


async def test_what_the_configuration_names_is_taken_and_nobody_asked(lister, nothing):
    named = {"m": ScriptedModel(script="x")}
    found = await look({**nothing, "OPENAI_API_KEY": "secret"}, lister.place, named=named)

    assert (found.models.named, found.why) == (named, "as the configuration says")
    assert lister.asked == []


async def test_an_upstream_of_the_environment_comes_before_a_server_of_this_machine(lister, nothing):
    url = f"http://127.0.0.1:{lister.port}/v1"
    with listening() as other:
        found = await look({**nothing, "OPENAI_API_KEY": "secret", "OPENAI_BASE_URL": url}, other.place)
        assert other.asked == []

    assert found.models.named["small"] == ChatCompletionsModel(
        base_url=url, model="small", api_key_env="OPENAI_API_KEY"
    )
    assert list(found.models.named) == ["small", "large"]
    assert found.why == f"OPENAI_BASE_URL is set, and 127.0.0.1:{lister.port} answers"
    path, headers = lister.asked[0]
    assert (path, headers["authorization"]) == ("/v1/models", "Bearer secret")


async def test_a_variable_says_which_of_an_upstreams_models_is_the_default(lister, nothing):
    lister.answer = listing("text-embedding-3", "gpt-a", "gpt-b")
    environment = {**nothing, "OPENAI_BASE_URL": f"http://127.0.0.1:{lister.port}/v1"}

    assert (await look(environment)).models.default == "gpt-a"
    assert (await look({**environment, "OPENAI_MODEL": "gpt-b"})).models.default == "gpt-b"
    assert (await look({**environment, "OPENAI_MODEL": "unknown"})).models.default == "gpt-a"


async def test_the_first_server_of_this_machine_that_has_models_is_taken(lister, nothing, unused_port):
    with listening() as empty, listening() as later:
        empty.answer = listing()
        found = await look(nothing, Place("x", unused_port), empty.place, lister.place, later.place)

    model = found.models.named["small"]
    assert isinstance(model, ChatCompletionsModel)
    assert model.base_url == f"http://127.0.0.1:{lister.port}/v1"
    assert found.why == f"Ollama answers on port {lister.port}"
    assert found.models.default == "small"
    assert "authorization" not in lister.asked[0][1]


async def test_an_upstream_that_does_not_answer_is_passed_by_and_that_is_said(lister, nothing, unused_port):
    environment = {**nothing, "OPENAI_BASE_URL": f"http://127.0.0.1:{unused_port}/v1"}
    found = await look(environment, lister.place)

    assert list(found.models.named) == ["small", "large"]
    assert found.why.startswith(f"OPENAI_BASE_URL is set, but 127.0.0.1:{unused_port} does not answer; Ollama")


async def test_this_server_and_others_of_its_kind_are_passed_by(lister, nothing):
    url = f"http://127.0.0.1:{lister.port}/v1"
    itself = await find_models(
        ModelsSettings(), {**nothing, "OPENAI_BASE_URL": url}, own_port=lister.port, places=[lister.place]
    )
    assert (itself.models.named, lister.asked) == ({}, [])
    assert "this server itself" in itself.why

    lister.answer = listing("m", owner="antwort")
    other = await look({**nothing, "OPENAI_BASE_URL": url}, lister.place)
    assert other.models.named == {}
    assert "is another antwort" in other.why


async def test_without_any_server_it_is_the_embedded_one(nothing, tmp_path):
    weights, cache = known(DEFAULT), Cache(tmp_path / "models")
    cache.folder.mkdir()
    with cache.path(weights).open("wb") as file:
        file.truncate(weights.size)  # a hole of the right size: nobody loads it here
    found = await look(nothing)

    assert found.models.named == {DEFAULT: EmbeddedModel()}
    assert found.why == "there is no other, so the embedded one answers"


async def test_without_anything_there_is_none_and_it_says_how_to_go_on(nothing):
    found = await look(nothing)

    assert found.models.named == {}
    assert "Three ways to go on" in found.why


async def test_nobody_is_asked_where_that_is_switched_off(lister, nothing):
    found = await look({**nothing, "OPENAI_API_KEY": "secret"}, lister.place, discover=False)

    assert (found.models.named, lister.asked) == ({}, [])


@pytest.mark.parametrize(
    "answer, status, said",
    [
        (b"<html>", 200, "no list"),
        (b'{"data": {"id": 1}}', 200, "no list"),
        (b"[]", 200, "no list"),
        (b'{"data": [{"id": 7}, {}]}', 200, "no models"),
        (b"x" * 5_000_000, 200, "too much"),
        (b"{}", 401, "answers 401"),
    ],
)
async def test_what_is_no_list_of_models_is_none(lister, answer, status, said):
    lister.answer, lister.status = answer, status
    with pytest.raises(Silent, match=said):
        await names_at(f"http://127.0.0.1:{lister.port}/v1", None, 5)


@pytest.mark.parametrize("address", ["http://[", "nonsense", "http://127.0.0.1:99999/v1"])
async def test_what_is_no_address_does_not_answer(address):
    with pytest.raises(Silent, match="does not answer"):
        await names_at(address, None, 5)


async def test_a_server_that_only_listens_is_not_waited_for(lister):
    lister.hold.clear()
    async with asyncio.timeout(20):
        with pytest.raises(Silent, match="does not answer"):
            await names_at(f"http://127.0.0.1:{lister.port}/v1", None, 0.2)


def test_the_usual_ports_are_known():
    assert {place.kind: place.port for place in PLACES} == {
        "Ollama": 11434,
        "llama.cpp": 8080,
        "vLLM": 8000,
        "LM Studio": 1234,
    }


# ── looking at one ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_model_at_a_server_works_where_the_server_lists_it(lister):
    url = f"http://127.0.0.1:{lister.port}/v1"
    model = ChatCompletions(url)
    settings = ChatCompletionsModel(base_url=url)
    has = await look_at(ChosenModel("a", model, "small"), settings, {})
    lacks = await look_at(ChosenModel("a", model, "huge"), settings, {})
    lister.status = 500
    fails = await look_at(ChosenModel("a", model, "small"), ResponsesModel(base_url=url), {})
    await model.aclose()

    assert (has.works, lacks.works, fails.works) == (True, False, False)
    assert "does not list huge" in lacks.seen
    assert "answers 500" in fails.seen


async def test_an_embedded_model_works_where_it_starts(tmp_path):
    script = Reply().write(tmp_path / "reply.json")
    for command, works in ((COMMAND, True), (("false",), False)):
        model = Embedded(Supervisor(script, command=command))
        state = await look_at(ChosenModel("a", model, "a"), EmbeddedModel(), {})
        await model.aclose()
        assert state.works is works
        assert state.seen


async def test_a_script_works():
    model = Scripted(parse_script("answers: []"))
    assert (await look_at(ChosenModel("a", model, "a"), ScriptedModel(script="x"), {})).works
