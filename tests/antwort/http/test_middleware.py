from __future__ import annotations

import time
from typing import Any

import pytest
from fake_echo_provider import EchoProvider
from fixtures_in_process_server import run_in_process_server
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from antwort.auth import KeyFile
from antwort.http.middleware import RequestMiddleware
from antwort.http.services import caller_of

pytestmark = pytest.mark.anyio


async def break_down(request):
    raise ValueError("a secret in an exception")


async def block(request):
    time.sleep(0.01)  # noqa: ASYNC251 - that it is noticed is what the test is about
    return PlainTextResponse("not noticed")


async def leave(request):
    raise ClientDisconnect


async def begin_and_break_down(request):
    async def chunks():
        yield b"some"
        raise ValueError("a secret in an exception")

    return StreamingResponse(chunks())


async def whoami(request):
    return PlainTextResponse(caller_of(request).tenant)


class Rooms(EchoProvider):
    """A provider with routes of its own, which go wrong in their own ways."""

    tools = ()

    @property
    def name(self) -> str:
        return "rooms"

    def metrics(self) -> list[Any]:
        return []

    def routes(self) -> list[Route]:
        handlers = (break_down, block, leave, begin_and_break_down, whoami)
        return [Route(f"/v1/{handler.__name__}", handler) for handler in handlers]


@pytest.fixture
async def keyed(tmp_path):
    file = KeyFile(tmp_path / "keys.json")
    _, ours = file.create("ours", "a", requests_per_minute=100)
    config = {"auth": {"keys_file": str(tmp_path / "keys.json")}}
    async with run_in_process_server(tmp_path, config, extra_providers=[Rooms()]) as (services, http):
        http.headers["authorization"] = f"Bearer {ours}"
        yield services, http


async def test_every_answer_carries_what_the_wire_wants(keyed):
    _, http = keyed
    for path in ("/v1/models", "/v1/nothing", "/v1/responses/resp_0", "/v1/break_down", "/healthz"):
        answer = await http.get(path)
        assert answer.headers["x-request-id"].startswith("req_")
        assert answer.headers["openai-version"] == "2020-10-01"
        assert answer.headers["openai-processing-ms"].isdecimal()
        assert answer.headers["x-content-type-options"] == "nosniff"


async def test_whoever_has_a_key_is_told_what_is_left(keyed):
    _, http = keyed
    answer = await http.get("/v1/models")

    assert answer.headers["openai-organization"] == "a"
    assert answer.headers["x-ratelimit-limit-requests"] == "100"
    assert answer.headers["x-ratelimit-remaining-requests"] == "99"
    assert answer.headers["x-ratelimit-reset-requests"].endswith("s")


async def test_routes_of_providers_are_behind_the_gate_too(keyed):
    _, http = keyed
    assert (await http.get("/v1/whoami")).text == "a"
    assert (await http.get("/v1/whoami", headers={"authorization": "Bearer wrong"})).status_code == 401


async def test_health_and_the_document_need_no_key(keyed):
    _, http = keyed
    for path in ("/healthz", "/readyz", "/openapi.json"):
        answer = await http.get(path, headers={"authorization": "Bearer wrong"})
        assert answer.status_code == 200
        assert "openai-organization" not in answer.headers


async def test_whatever_goes_wrong_behind_it_is_an_envelope_without_a_word_of_it(keyed):
    _, http = keyed
    answer = await http.get("/v1/break_down")

    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
    assert "secret" not in answer.text


async def test_a_handler_that_blocks_the_loop_is_noticed(keyed):
    _, http = keyed
    assert (await http.get("/v1/block")).status_code == 500


async def test_a_caller_who_has_gone_is_counted_as_such(keyed):
    services, http = keyed
    await http.get("/v1/leave")  # in truth nobody would be there to read what uvicorn says now

    page = services.metrics.render()[0].decode()
    assert 'antwort_http_requests_total{method="GET",route="test_gate.leave",status="499"} 1.0' in page


async def test_an_answer_that_has_begun_is_not_begun_again(keyed):
    services, http = keyed
    with pytest.raises(Exception, match=r"incomplete|closed|disconnected"):
        await http.get("/v1/begin_and_break_down")

    assert 'route="test_gate.begin_and_break_down",status="200"} 1.0' in services.metrics.render()[0].decode()


async def test_a_label_never_holds_what_a_caller_chooses(keyed):
    services, http = keyed
    await http.request("PROPFIND", "/v1/xylophone")
    await http.get("/v1/files/xylophone")
    page = services.metrics.render()[0].decode()

    assert 'antwort_http_requests_total{method="_OTHER",route="none",status="404"} 1.0' in page
    assert "ylophone" not in page.lower().replace("_", "")


@pytest.mark.parametrize(
    "headers, status",
    [
        ({"host": "localhost:1"}, 200),
        ({"host": "LOCALHOST."}, 200),
        ({"host": "127.9.9.9"}, 200),
        ({"host": "[::1]:80"}, 200),
        ({"host": "[::ffff:127.0.0.1]:80"}, 200),
        ({"origin": "http://localhost:3000"}, 200),
        ({"origin": "http://[::1]:3000"}, 200),
        ({"host": "rebound.example"}, 403),
        ({"host": "127.0.0.1.example"}, 403),
        ({"host": "localhost.example"}, 403),
        ({"origin": "https://example.com"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "file://"}, 403),
    ],
)
async def test_without_keys_only_this_machine_may_ask(server, headers, status):
    assert (await server.http.get("/v1/models", headers=headers)).status_code == status


async def test_websockets_are_closed():
    sent = []

    async def send(message):
        sent.append(message)

    async def never(*_):
        raise AssertionError("nobody asks the application")

    await RequestMiddleware(never, None)({"type": "websocket"}, never, send)  # pyright: ignore[reportArgumentType] - it needs none
    assert sent == [{"type": "websocket.close", "code": 1008}]
