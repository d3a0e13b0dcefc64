from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from cross_origin_cases import ALLOWED_FETCH_SITE, ALLOWED_HOSTS, REJECTED_HOSTS, REJECTED_ORIGINS
from fake_echo_provider import EchoProvider
from fixtures_in_process_server import run_in_process_server
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from antwort.auth import KeyFile
from antwort.http.services import caller_of

pytestmark = pytest.mark.anyio


async def fail(request):
    raise ValueError("a secret in an exception")


async def block(request):
    time.sleep(0.01)  # noqa: ASYNC251 - the test is about its detection
    return PlainTextResponse("not detected")


async def leave(request):
    raise ClientDisconnect


async def start_and_fail(request):
    async def chunks():
        yield b"some"
        raise ValueError("a secret in an exception")

    return StreamingResponse(chunks())


async def whoami(request):
    return PlainTextResponse(caller_of(request).tenant)


class RoutesProvider(EchoProvider):
    """A provider whose routes fail in different ways."""

    tools = ()

    @property
    def name(self) -> str:
        return "routes"

    def metrics(self) -> list[Any]:
        return []

    def routes(self) -> list[Route]:
        handlers = (fail, block, leave, start_and_fail, whoami)
        return [Route(f"/v1/{handler.__name__}", handler) for handler in handlers]


@pytest.fixture
async def keyed(tmp_path):
    file = KeyFile(tmp_path / "keys.json")
    _, token = file.create("key", "a", requests_per_minute=100)
    config = {"auth": {"keys_file": str(tmp_path / "keys.json")}}
    async with run_in_process_server(tmp_path, config, extra_providers=[RoutesProvider()]) as (services, http):
        http.headers["authorization"] = f"Bearer {token}"
        yield services, http


async def test_every_response_has_the_standard_headers(keyed):
    _, http = keyed
    for path in ("/v1/models", "/v1/nothing", "/v1/responses/resp_0", "/v1/fail", "/healthz"):
        response = await http.get(path)
        assert response.headers["x-request-id"].startswith("req_")
        assert response.headers["openai-version"] == "2020-10-01"
        assert response.headers["openai-processing-ms"].isdecimal()
        assert response.headers["x-content-type-options"] == "nosniff"


async def test_responses_have_organization_and_rate_limit_headers(keyed):
    _, http = keyed
    response = await http.get("/v1/models")

    assert response.headers["openai-organization"] == "a"
    assert response.headers["x-ratelimit-limit-requests"] == "100"
    assert response.headers["x-ratelimit-remaining-requests"] == "99"
    assert response.headers["x-ratelimit-reset-requests"].endswith("s")


async def test_routes_of_providers_need_a_key(keyed):
    _, http = keyed
    assert (await http.get("/v1/whoami")).text == "a"
    assert (await http.get("/v1/whoami", headers={"authorization": "Bearer wrong"})).status_code == 401


async def test_health_checks_and_openapi_document_need_no_key(keyed):
    _, http = keyed
    for path in ("/healthz", "/readyz", "/openapi.json"):
        response = await http.get(path, headers={"authorization": "Bearer wrong"})
        assert response.status_code == 200
        assert "openai-organization" not in response.headers


async def test_an_unexpected_exception_becomes_a_500_envelope_without_its_text(keyed):
    _, http = keyed
    response = await http.get("/v1/fail")

    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert "secret" not in response.text


async def test_a_handler_that_blocks_the_loop_is_detected(keyed):
    _, http = keyed
    assert (await http.get("/v1/block")).status_code == 500


async def test_a_disconnect_is_counted_as_499(keyed):
    services, http = keyed
    await http.get("/v1/leave")  # the client of a real disconnect would not see uvicorn's response

    page = services.metrics.render()[0].decode()
    assert 'antwort_http_requests_total{method="GET",route="test_middleware.leave",status="499"} 1.0' in page


async def test_an_exception_after_the_start_of_the_response_sends_no_second_one(keyed):
    services, http = keyed
    with pytest.raises(Exception, match=r"incomplete|closed|disconnected"):
        await http.get("/v1/start_and_fail")

    assert 'route="test_middleware.start_and_fail",status="200"} 1.0' in services.metrics.render()[0].decode()


async def test_metric_labels_contain_no_text_of_the_caller(keyed):
    services, http = keyed
    await http.request("PROPFIND", "/v1/xylophone")
    await http.get("/v1/files/xylophone")
    page = services.metrics.render()[0].decode()

    assert 'antwort_http_requests_total{method="_OTHER",route="none",status="404"} 1.0' in page
    assert "ylophone" not in page.lower().replace("_", "")


async def get_status(base_url: str, *lines: str, path: str = "/v1/models") -> int:
    """The status of a raw request with exactly these headers."""
    host, _, port = base_url.removeprefix("http://").rstrip("/").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write("\r\n".join([f"GET {path} HTTP/1.1", *lines, "Connection: close", "", ""]).encode())
    head = await reader.read()
    writer.close()
    return int(head.split()[1])


@pytest.mark.parametrize("host", ALLOWED_HOSTS)
async def test_without_keys_loopback_hosts_are_allowed(server, host):
    assert await get_status(str(server.http.base_url), f"Host: {host}", ALLOWED_FETCH_SITE) == 200


@pytest.mark.parametrize("lines", REJECTED_HOSTS, ids=str)
async def test_without_keys_other_hosts_are_rejected(server, lines):
    assert await get_status(str(server.http.base_url), *lines) == 403


@pytest.mark.parametrize("line", REJECTED_ORIGINS)
async def test_without_keys_web_pages_are_rejected(server, line):
    assert await get_status(str(server.http.base_url), "Host: localhost", line) == 403


@pytest.mark.parametrize("lines", [*REJECTED_HOSTS, *(("Host: localhost", line) for line in REJECTED_ORIGINS)], ids=str)
async def test_with_a_key_every_host_and_origin_is_allowed(keyed, lines):
    _, http = keyed
    authorization = f"Authorization: {http.headers['authorization']}"
    assert await get_status(str(http.base_url), *lines, authorization) == 200
