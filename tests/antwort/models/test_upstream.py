from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress

import pytest
import structlog
import yaml
from fake_forward_proxy import forward_proxy
from private_ca import PrivateCa

from antwort.config import ConfigError, parse
from antwort.engine.ports import ModelFault
from antwort.models.registry import open_models
from antwort.models.upstream import Upstream, UpstreamStatusError, proxy_for
from antwort.net.sse import ServerEvent
from antwort.telemetry import Metrics

pytestmark = pytest.mark.anyio

KEY = "sk-very-secret"


@pytest.fixture
def client(upstream):
    return Upstream(upstream.url, api_key=KEY, max_event=1000)


async def events(client):
    return [event async for event in client.stream("responses", {"model": "m"})]


async def test_events_are_passed_on(upstream, client):
    upstream.set_replies(upstream.sse({"a": 1}, "[DONE]"))

    assert await events(client) == [ServerEvent("", b'{"a": 1}'), ServerEvent("", b"[DONE]")]
    await client.aclose()


async def until_done(client):
    seen = []
    async for event in client.stream("responses", {"model": "m"}, is_done=lambda: seen[-1].data == b"[DONE]"):
        seen.append(event)  # noqa: PERF401 - `is_done` reads the events so far
    return [event.data for event in seen]


async def test_the_connection_of_a_complete_stream_is_reused(upstream, client):
    upstream.set_replies(upstream.sse("1", "[DONE]", "2"))

    assert await until_done(client) == await until_done(client) == [b"1", b"[DONE]"]
    await client.aclose()

    first, second = upstream.requests
    assert first.port == second.port


async def test_a_server_that_does_not_end_a_complete_stream_is_disconnected(upstream, client):
    upstream.set_replies(upstream.sse("[DONE]", pause=60.0))

    assert await until_done(client) == [b"[DONE]"]
    assert await asyncio.to_thread(upstream.client_disconnected.wait, 10)
    await client.aclose()


async def test_a_response_that_is_not_a_stream_is_one_event(upstream, client):
    upstream.set_replies(upstream.json({"a": 1}))

    assert await events(client) == [ServerEvent("", b'{"a": 1}')]
    await client.aclose()


async def test_the_api_key_is_removed_from_errors_and_log_and_long_messages_are_shortened(upstream, client):
    message = f"no such key: {KEY} " + "x" * 10_000  # the last word is cut off, because it may be half a key
    upstream.set_replies(upstream.json({"error": {"message": message, "code": f"bad {KEY}"}}, 401))

    with pytest.raises(UpstreamStatusError) as caught:
        await events(client)
    with structlog.testing.capture_logs() as lines:
        fault = client.fault(caught.value, model="mine")
    await client.aclose()

    assert KEY not in f"{caught.value} {fault} {lines}"
    assert lines[0]["code"] == "bad [redacted]"
    assert lines[0]["message"] == "no such key: [redacted]"
    assert len(str(lines)) < 1000


async def test_post_returns_json_within_the_limit(upstream, client):
    upstream.set_replies(upstream.json({"count": 3}), path="count")
    assert await client.post(f"{upstream.root}/count", {}) == {"count": 3}

    upstream.set_replies(upstream.json(b"<html>"), path="count")
    with pytest.raises(ModelFault, match="could not be read"):
        await client.post(f"{upstream.root}/count", {})

    upstream.set_replies(upstream.json([1] * 10_000), path="count")
    with pytest.raises(ModelFault, match="could not be read"):
        await client.post(f"{upstream.root}/count", {})

    with pytest.raises(UpstreamStatusError, match="404"):
        await client.post(f"{upstream.root}/elsewhere", {})
    await client.aclose()


# ── proxies and TLS ──────────────────────────────────────────────────────────────────────────────────────────────────

RESPONSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\ndata: 1\n\n"
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "ssl_cert_file", "ssl_cert_dir")


@pytest.fixture(autouse=True)
def _no_proxy_of_the_host(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(scope="module")
def ca(tmp_path_factory):
    return PrivateCa(tmp_path_factory.mktemp("ca"))


@asynccontextmanager
async def model_server(ssl_context=None):
    """The base URL of a server on loopback that answers every request with one event."""

    handlers = set()

    async def handle(reader, writer):
        handlers.add(asyncio.current_task())
        with suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(RESPONSE)
            await writer.drain()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=ssl_context)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"{'https' if ssl_context else 'http'}://127.0.0.1:{port}/v1"
    finally:
        server.close()
        await asyncio.gather(*handlers)


async def request_lines(monkeypatch, base_url, environment, **options) -> list[str]:
    """Send one request with these variables, where PROXY stands for the URL of a proxy; what the proxy has received."""
    async with forward_proxy() as proxy:
        for name, value in environment.items():
            monkeypatch.setenv(name, value.replace("PROXY", proxy.url))
        # In a thread, because it reads certificates; a server creates its models before it serves.
        upstream = await asyncio.to_thread(Upstream, base_url, max_event=1000, **options)
        try:
            assert await events(upstream) == [ServerEvent("", b"1")]
        finally:
            await upstream.aclose()
        return proxy.request_lines


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"])
async def test_http_goes_through_the_proxy_in_absolute_form(monkeypatch, variable):
    async with model_server() as base_url:
        lines = await request_lines(monkeypatch, base_url, {variable: "PROXY"})
        assert lines == [f"POST {base_url}/responses HTTP/1.1"]


@pytest.mark.parametrize("variable", ["https_proxy", "HTTPS_PROXY", "ALL_PROXY"])
async def test_https_goes_through_a_connect_tunnel(monkeypatch, ca, variable):
    async with model_server(ca.server_context) as base_url:
        lines = await request_lines(monkeypatch, base_url, {variable: "PROXY"}, ca_file=str(ca.ca_file))
        assert lines == [f"CONNECT {base_url[len('https://') : -len('/v1')]} HTTP/1.1"]


async def test_a_proxy_without_scheme_is_an_http_proxy(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "proxy.example:3128")
    assert proxy_for("http://model.example/v1") == "http://proxy.example:3128"
    assert proxy_for("https://model.example/v1") is None
    assert proxy_for("http://[::1") is None


@pytest.mark.parametrize("no_proxy", ["127.0.0.1", "example.com, 127.0.0.0/8", "*", "example.com,127.0.0.1"])
async def test_no_proxy_bypasses_the_proxy(monkeypatch, no_proxy):
    async with model_server() as base_url:
        assert await request_lines(monkeypatch, base_url, {"ALL_PROXY": "PROXY", "NO_PROXY": no_proxy}) == []


@pytest.mark.parametrize(
    "url, no_proxy, bypassed",
    [
        ("http://model.example/v1", "model.example", True),
        ("http://gpu.model.example/v1", "model.example", True),
        ("http://gpu.model.example/v1", ".model.example", True),
        ("http://notmodel.example/v1", "model.example", False),
        ("http://model.example:8000/v1", "model.example:8000", True),
        ("http://model.example/v1", "model.example:8000", False),
        ("http://10.1.2.3/v1", "10.0.0.0/8", True),
        ("http://11.1.2.3/v1", "10.0.0.0/8", False),
        ("http://[::1]:8000/v1", "::1", True),
        ("http://[fd00::7]/v1", "[fd00::]/8, fd00::/8", True),
    ],
)
def test_the_rules_of_no_proxy(monkeypatch, url, no_proxy, bypassed):
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert (proxy_for(url) is None) is bypassed


async def test_a_direct_upstream_ignores_the_proxy(monkeypatch):
    async with model_server() as base_url:
        assert await request_lines(monkeypatch, base_url, {"ALL_PROXY": "PROXY"}, direct=True) == []


async def test_a_private_ca_is_trusted_with_ca_file(monkeypatch, ca):
    async with model_server(ca.server_context) as base_url:
        assert await request_lines(monkeypatch, base_url, {}, ca_file=str(ca.ca_file)) == []
        assert await request_lines(monkeypatch, base_url, {"SSL_CERT_FILE": str(ca.ca_file)}) == []


@pytest.mark.parametrize("environment", [{}, {"HTTPS_PROXY": "PROXY"}], ids=["direct", "proxy"])
async def test_a_private_ca_is_rejected_without_ca_file(monkeypatch, ca, environment):
    async with model_server(ca.server_context) as base_url:
        with pytest.raises(ModelFault):
            await request_lines(monkeypatch, base_url, environment)


async def test_ca_file_replaces_the_certificates_of_the_environment(monkeypatch, ca, tmp_path):
    other = PrivateCa(tmp_path)
    async with model_server(ca.server_context) as base_url:
        with pytest.raises(ModelFault):
            await request_lines(monkeypatch, base_url, {"SSL_CERT_FILE": str(ca.ca_file)}, ca_file=str(other.ca_file))


@pytest.mark.parametrize("kind", ["chat_completions", "responses"])
@pytest.mark.parametrize("content", [None, "not a certificate"], ids=["missing", "invalid"])
def test_an_unusable_ca_file_is_a_start_up_error_that_names_the_key(tmp_path, kind, content):
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    models = {"mine": {"kind": kind, "base_url": "https://model.example/v1", "ca_file": str(path)}}
    config = parse(yaml.safe_dump({"models": models}), {})
    with pytest.raises(ConfigError, match=r"models\.mine\.ca_file: cannot load '.*ca\.pem'"):
        open_models(config.models, Metrics(), {})


def test_an_unsupported_proxy_is_a_start_up_error(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "gopher://proxy.example")
    models = {"mine": {"kind": "responses", "base_url": "http://model.example/v1"}}
    with pytest.raises(ConfigError, match=r"models\.mine\.base_url: the proxy of the environment is not usable"):
        open_models(parse(yaml.safe_dump({"models": models}), {}).models, Metrics(), {})
