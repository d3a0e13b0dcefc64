from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager, suppress

import httpx2
import pytest
from private_ca import PrivateCa

from antwort.net.http_transport import _HIGH_WATER, HttpTransport
from antwort.net.tls import client_ssl_context

pytestmark = pytest.mark.anyio

HELLO = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
LARGE = 1 << 20


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request):
    return "asyncio", {"use_uvloop": request.param}


class Peer:
    """A server whose connection handler is given by the test."""

    def __init__(self, handle, *, tls: ssl.SSLContext | None = None) -> None:
        self._handle = handle
        self._tls = tls
        self.connections = 0
        self.ended = asyncio.Event()

    async def _serve(self, reader, writer) -> None:
        self.connections += 1
        try:
            await self._handle(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.ended.set()
            writer.close()
            with suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()

    @asynccontextmanager
    async def client(self, limits: float | httpx2.Timeout = 5.0, **options):
        scheme = "https" if self._tls else "http"
        self.server = server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self.transport = HttpTransport(**options)
        async with server, httpx2.AsyncClient(base_url=url, transport=self.transport, timeout=limits) as client:
            yield client


async def read_request(reader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
    return head + await reader.readexactly(length)


def respond_with(*responses: bytes, closes: bool = False):
    """One response for each request, the last one repeatedly; with `closes` only one per connection."""

    async def handle(reader, writer):
        left = list(responses)
        while True:
            await read_request(reader)
            writer.write(left.pop(0) if len(left) > 1 else left[0])
            await writer.drain()
            if closes:
                return

    return handle


async def post(client) -> str:
    return (await client.post("/", content=b"{}")).text


async def put(client) -> str:
    return (await client.put("/", content=b"{}")).text


# ── requests and responses ───────────────────────────────────────────────────────────────────────────────────────────


async def test_the_request_of_httpx2_is_sent_unchanged():
    seen = []

    async def handle(reader, writer):
        seen.append(await read_request(reader))
        writer.write(HELLO)

    async with Peer(handle).client() as client:
        response = await client.post("/v1/chat?x=1", content=b"body", headers={"x-team": "a"})

    assert (response.status_code, response.content) == (200, b"hello")
    assert seen[0].startswith(b"POST /v1/chat?x=1 HTTP/1.1\r\n")
    assert b"x-team: a\r\n" in seen[0].lower()
    assert seen[0].endswith(b"\r\n\r\nbody")


@pytest.mark.parametrize(
    "response, text",
    [
        pytest.param(HELLO, "hello", id="a length"),
        pytest.param(CHUNKED + b"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", "hello", id="chunks"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\nhello", "hello", id="until the end of the connection"),
        pytest.param(b"HTTP/1.1 100 Continue\r\nx: y\r\n\r\n" + HELLO, "hello", id="after an interim response"),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", "", id="nothing"),
    ],
)
async def test_length_chunks_and_end_of_connection_end_a_response(response, text):
    async with Peer(respond_with(response, closes=True)).client() as client:
        response = await client.post("/")

    assert response.text == text
    assert "x" not in response.headers


async def test_chunks_are_delivered_when_they_arrive():
    more = asyncio.Event()

    async def handle(reader, writer):
        await read_request(reader)
        writer.write(CHUNKED + b"3\r\none\r\n")
        await more.wait()
        writer.write(b"3\r\ntwo\r\n0\r\n\r\n")

    async with Peer(handle).client() as client, client.stream("POST", "/") as response:
        chunks = response.aiter_raw()
        assert await anext(chunks) == b"one"
        more.set()
        assert [chunk async for chunk in chunks] == [b"two"]


async def test_line_breaks_in_a_header_are_rejected():
    async with Peer(respond_with(HELLO)).client() as client:
        with pytest.raises(httpx2.LocalProtocolError):
            await client.post("/", headers={"authorization": "Bearer a\r\nx-admin: 1"})


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/", "http:///v1"])
async def test_unsupported_urls_are_rejected(url):
    async with httpx2.AsyncClient(transport=HttpTransport()) as client:
        with pytest.raises(httpx2.UnsupportedProtocol):
            await client.post(url)


# ── connections ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_connection_is_reused():
    peer = Peer(respond_with(HELLO))
    async with peer.client() as client:
        assert [await post(client) for _ in range(3)] == ["hello"] * 3

    assert peer.connections == 1


async def test_concurrent_requests_have_own_connections_and_idle_ones_are_limited():
    peer = Peer(respond_with(HELLO))
    async with peer.client(max_idle=2) as client:
        await asyncio.gather(*(post(client) for _ in range(5)))
        assert peer.connections == 5
        await asyncio.gather(*(post(client) for _ in range(3)))

    assert peer.connections == 6


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(HELLO.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"), id="connection: close"),
        pytest.param(HELLO.replace(b"1.1", b"1.0"), id="HTTP/1.0"),
        pytest.param(HELLO + b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil", id="a second response"),
    ],
)
async def test_a_connection_that_cannot_be_kept_alive_is_not_reused(first):
    peer = Peer(respond_with(first, HELLO))
    async with peer.client() as client:
        assert [await post(client) for _ in range(2)] == ["hello"] * 2

    assert peer.connections == 2


async def test_a_closed_idle_connection_is_not_reused():
    peer = Peer(respond_with(HELLO, closes=True))
    async with peer.client() as client:
        for _ in range(3):
            assert await post(client) == "hello"
            while peer.transport._open:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.01)

    assert peer.connections == 3


async def test_an_idle_connection_is_closed_after_the_idle_timeout():
    peer = Peer(respond_with(HELLO))
    async with peer.client(idle_timeout=0.05) as client:
        await post(client)
        await asyncio.wait_for(peer.ended.wait(), 5)


class StalePeer(Peer):
    """Responds to the first request of a connection; closes it without a response when the second arrives."""

    def __init__(self, *, delay: float = 0.0, first_bytes: bytes = b"", tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[bytes] = []
        super().__init__(self._respond_once, tls=tls)
        self._delay = delay
        self._first_bytes = first_bytes

    async def _respond_once(self, reader, writer) -> None:
        self.requests.append(await read_request(reader))
        writer.write(HELLO)
        await reader.readexactly(1)
        await asyncio.sleep(self._delay)
        writer.write(self._first_bytes)
        await writer.drain()


async def test_an_idempotent_request_on_a_stale_connection_is_sent_again_on_a_new_one():
    peer = StalePeer()
    async with peer.client() as client:
        for text in ("one", "two", "three"):
            assert (await client.put("/", content=text)).text == "hello"

    assert peer.connections == 3
    assert [request.rpartition(b"\r\n\r\n")[2] for request in peer.requests] == [b"one", b"two", b"three"]


async def test_a_request_on_a_stale_tls_connection_is_sent_again(ca):
    peer = StalePeer(tls=ca.server_context)
    async with peer.client(ssl_context=client_ssl_context(str(ca.ca_file))) as client:
        assert [await put(client) for _ in range(2)] == ["hello"] * 2

    assert peer.connections == 2


async def test_a_large_request_on_a_stale_connection_is_sent_again():
    peer = StalePeer()
    async with peer.client() as client:
        for _ in range(2):
            assert (await client.put("/", content=b"x" * (8 * LARGE))).text == "hello"

    assert peer.connections == 2


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"delay": 1.2}, id="closed later: the peer may have processed the request"),
        pytest.param({"first_bytes": b"H"}, id="a byte of the response was received"),
    ],
)
async def test_a_request_that_the_peer_may_have_processed_is_not_sent_again(options):
    peer = StalePeer(**options)
    async with peer.client() as client:
        assert await put(client) == "hello"
        with pytest.raises(httpx2.RemoteProtocolError):
            await put(client)

    assert peer.connections == 1


async def test_a_request_is_sent_again_only_once_and_never_on_a_new_connection():
    async def close_later_connections(reader, writer) -> None:
        await read_request(reader)
        if peer.connections == 1:
            writer.write(HELLO)
            await reader.readexactly(1)

    peer = Peer(close_later_connections)
    async with peer.client() as client:
        assert await put(client) == "hello"
        for _ in range(2):
            with pytest.raises(httpx2.RemoteProtocolError):
                await put(client)

    assert peer.connections == 3


async def test_the_error_of_a_stale_connection_is_kept_if_the_peer_is_gone():
    async def stop_listening(reader, writer) -> None:
        await read_request(reader)
        writer.write(HELLO)
        await reader.readexactly(1)
        peer.server.close()

    peer = Peer(stop_listening)
    async with peer.client() as client:
        assert await put(client) == "hello"
        with pytest.raises(httpx2.RemoteProtocolError):
            await put(client)


async def test_a_post_is_never_sent_again():
    peer = StalePeer()
    async with peer.client() as client:
        assert await post(client) == "hello"
        with pytest.raises(httpx2.RemoteProtocolError):
            await post(client)

    assert (peer.connections, len(peer.requests)) == (1, 1)


@pytest.mark.parametrize("leave", ["break", "cancel"])
async def test_an_abandoned_response_closes_the_connection(leave):
    async def handle(reader, writer):
        await read_request(reader)
        writer.write(CHUNKED + b"3\r\none\r\n")
        await reader.read()  # until the client closes the connection

    begun = asyncio.Event()

    async def ask(client):
        async with client.stream("POST", "/") as response:
            async for _ in response.aiter_raw():
                begun.set()
                if leave == "break":
                    return

    peer = Peer(handle)
    async with peer.client() as client:
        task = asyncio.create_task(ask(client))
        await begun.wait()
        if leave == "cancel":
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.wait_for(peer.ended.wait(), 5)


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "response",
    [
        pytest.param(b"", id="no response"),
        pytest.param(HELLO[:20], id="in the head"),
        pytest.param(HELLO[:-1], id="before the announced length"),
        pytest.param(CHUNKED + b"3\r\nhel\r\n", id="before the last chunk"),
        pytest.param(b"SSH-2.0-OpenSSH\r\n\r\n", id="another protocol"),
        pytest.param(CHUNKED + b"xyz\r\n", id="invalid chunks"),
        pytest.param(b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n", id="an upgrade"),
        pytest.param(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000, id="endless headers"),
    ],
)
async def test_incomplete_and_invalid_responses_are_errors(response):
    async with Peer(respond_with(response, closes=True)).client() as client:
        with pytest.raises(httpx2.RemoteProtocolError):
            await post(client)


@pytest.mark.parametrize("start", [b"0\r\n", b"5;"], ids=["trailers", "chunk extension"])
async def test_endless_trailers_and_chunk_extensions_are_an_error(start):
    async def handle(reader, writer):
        await read_request(reader)
        writer.write(CHUNKED + b"5\r\nhello\r\n" + start)
        for _ in range(64):
            writer.write(b"x: " + b"y" * LARGE + b"\r\n" if start == b"0\r\n" else b"y" * LARGE)
            await writer.drain()
        writer.write(b"\r\n" if start == b"0\r\n" else b"\r\nhello\r\n0\r\n\r\n")
        await writer.drain()

    async with Peer(handle).client() as client:
        with pytest.raises(httpx2.RemoteProtocolError, match="that are no body"):
            await client.get("/")


async def test_trailers_are_discarded():
    async def handle(reader, writer):
        await read_request(reader)
        writer.write(CHUNKED + b"5\r\nhello\r\n0\r\nx-trailer: a\r\n\r\n")

    async with Peer(handle).client() as client:
        response = await client.get("/")

    assert (response.text, "x-trailer" in response.headers) == ("hello", False)


async def test_data_before_an_error_is_delivered():
    peer = Peer(respond_with(CHUNKED + b"3\r\nhel\r\n", closes=True))
    async with peer.client() as client, client.stream("POST", "/") as response:
        chunks = response.aiter_raw()
        assert await anext(chunks) == b"hel"
        with pytest.raises(httpx2.RemoteProtocolError):
            await anext(chunks)


async def test_connect_errors(free_tcp_port):
    async with httpx2.AsyncClient(transport=HttpTransport()) as client:
        with pytest.raises(httpx2.ConnectError):
            await client.post(f"http://127.0.0.1:{free_tcp_port}/")
        with pytest.raises(httpx2.ConnectError):
            await client.post(f"http://{'x' * 70}.invalid/")


@pytest.mark.parametrize("response", [b"", CHUNKED + b"3\r\none\r\n"], ids=["before the response", "within the body"])
async def test_the_read_timeout(response):
    async def silent(reader, writer):
        await read_request(reader)
        writer.write(response)
        await reader.read()

    peer = Peer(silent)
    async with peer.client(0.1) as client:
        with pytest.raises(httpx2.ReadTimeout):
            await post(client)
        await asyncio.wait_for(peer.ended.wait(), 5)


async def test_the_read_timeout_applies_to_each_wait_and_not_to_the_time_between_reads():
    async def slow(reader, writer):
        await read_request(reader)
        writer.write(CHUNKED)
        for _ in range(5):
            await asyncio.sleep(0.25)
            writer.write(b"3\r\none\r\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async with Peer(slow).client(0.9) as client, client.stream("POST", "/") as response:
        chunks = response.aiter_raw()
        assert await anext(chunks) == b"one"
        await asyncio.sleep(1.2)
        assert b"".join([chunk async for chunk in chunks]) == b"one" * 4


async def test_the_write_timeout():
    async def never_reads(reader, writer):
        await asyncio.sleep(60)

    limits = httpx2.Timeout(5.0, write=0.2)
    async with Peer(never_reads).client(limits) as client:
        with pytest.raises(httpx2.WriteTimeout):
            await client.post("/", content=b"x" * (32 * LARGE))


async def test_a_response_before_the_end_of_a_large_request_is_received():
    async def refuse(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
        await writer.drain()
        await reader.read(1)
        await asyncio.sleep(60)

    peer = Peer(refuse)
    async with peer.client() as client:
        for _ in range(2):  # the connection of a half-sent request is not reused
            response = await client.post("/", content=b"x" * (32 * LARGE))
            assert (response.status_code, response.text) == (413, "no")

    assert peer.connections == 2


async def test_a_slow_reader_pauses_the_sender():
    sent = 0

    async def flood(reader, writer):
        nonlocal sent
        await read_request(reader)
        writer.write(CHUNKED)
        for _ in range(200):
            writer.write(b"%x\r\n%b\r\n" % (LARGE, b"x" * LARGE))
            await writer.drain()
            sent += LARGE
        writer.write(b"0\r\n\r\n")

    async with Peer(flood).client() as client, client.stream("POST", "/") as response:
        chunks = response.aiter_raw()
        received = len(await anext(chunks))
        await asyncio.sleep(0.5)
        assert sent < 50 * LARGE
        received += sum([len(chunk) async for chunk in chunks])

    assert received == 200 * LARGE


async def test_the_connection_of_an_unread_but_complete_response_is_reused():
    length = _HIGH_WATER + 1  # the last byte completes the response and pauses reading
    large = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (length, b"x" * length)
    peer = Peer(respond_with(large, HELLO))
    async with peer.client() as client:
        async with client.stream("POST", "/"):
            while not next(iter(peer.transport._open))._is_complete:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.01)
        assert await post(client) == "hello"

    assert peer.connections == 1


# ── TLS ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def ca(tmp_path_factory):
    return PrivateCa(tmp_path_factory.mktemp("ca"))


async def test_tls(ca, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(ca.ca_file))
    peer = Peer(respond_with(HELLO), tls=ca.server_context)
    async with peer.client() as client:
        assert [await post(client) for _ in range(2)] == ["hello"] * 2

    assert peer.connections == 1


async def test_tls_with_a_given_context(ca):
    peer = Peer(respond_with(HELLO), tls=ca.server_context)
    async with peer.client(ssl_context=client_ssl_context(str(ca.ca_file))) as client:
        assert await post(client) == "hello"


async def test_an_unknown_certificate_is_rejected(ca):
    async with Peer(respond_with(HELLO), tls=ca.server_context).client() as client:
        with pytest.raises(httpx2.ConnectError, match="certificate"):
            await post(client)


async def test_a_unix_socket_is_used_whatever_the_url_says(tmp_path):
    async def handle(reader, writer):
        while await read_request(reader):
            writer.write(HELLO)

    peer = Peer(handle)
    server = await asyncio.start_unix_server(peer._serve, str(tmp_path / "s"))
    transport = HttpTransport(uds=str(tmp_path / "s"))
    async with server, httpx2.AsyncClient(base_url="http://sandbox", transport=transport) as client:
        assert [(await client.get("/")).text for _ in range(2)] == ["hello", "hello"]
    assert peer.connections == 1

    unreachable = HttpTransport(uds=str(tmp_path / "none"))
    async with httpx2.AsyncClient(base_url="http://sandbox", transport=unreachable) as client:
        with pytest.raises(httpx2.ConnectError):
            await client.get("/")


async def test_connection_close_is_honoured():
    peer = Peer(respond_with(HELLO))
    async with peer.client() as client:
        for _ in range(2):
            assert (await client.get("/", headers={"connection": "close"})).text == "hello"
        assert peer.connections == 2
        assert not peer.transport._idle


async def test_connections_go_to_the_resolved_addresses_only():
    resolved = []

    async def resolve(host, port):
        resolved.append(host)
        return ["127.9.9.9", "127.0.0.1"]

    async with Peer(respond_with(HELLO)).client() as client:
        port = client.base_url.port
        async with httpx2.AsyncClient(transport=HttpTransport(resolve=resolve)) as pinned:
            response = await pinned.get(f"http://never.example:{port}/")

    assert (response.text, resolved) == ("hello", ["never.example"])


# ── streamed request bodies ──────────────────────────────────────────────────────────────────────────────────────────

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


async def read_chunks(reader) -> bytes:
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    return body


async def test_a_body_is_streamed_in_chunks():
    received = []

    async def handle(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        received.append(await read_chunks(reader))
        writer.write(HELLO)

    async def body():
        for size in (1, 0, LARGE, 3):
            yield bytes(size)

    async with Peer(handle).client() as client:
        assert (await client.post("/", content=body())).text == "hello"
    assert received == [bytes(LARGE + 4)]


async def test_the_body_is_not_read_before_the_peer_asks_for_it():
    asked, started = asyncio.Event(), []

    async def handle(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        await asked.wait()
        writer.write(CONTINUE)
        assert await read_chunks(reader) == b"content"
        writer.write(HELLO)

    async def body():
        started.append(1)
        yield b"content"

    async with Peer(handle).client(limits=httpx2.Timeout(0.05, connect=5)) as client:
        sending = asyncio.create_task(client.post("/", content=body(), headers={"expect": "100-continue"}))
        await asyncio.sleep(0.2)  # longer than the time-outs
        assert not started
        asked.set()
        assert (await sending).text == "hello"


async def test_the_body_is_not_read_if_the_peer_answers_without_it():
    async def handle(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 409 Conflict\r\ncontent-length: 2\r\n\r\nno")
        await reader.read()

    started = []

    async def body():
        started.append(1)
        yield b"content"

    peer = Peer(handle)
    async with peer.client() as client:
        answer = await client.post("/", content=body(), headers={"expect": "100-continue"})
        assert (answer.status_code, answer.text, started) == (409, "no", [])
        await peer.ended.wait()  # the connection is not used again
        assert not peer.transport._open


async def test_an_answer_ends_an_upload():
    async def handle(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HELLO)
        await writer.drain()
        await reader.read()

    async def endless():
        while True:
            yield bytes(1000)
            await asyncio.sleep(0)

    async with Peer(handle).client() as client:
        assert (await client.post("/", content=endless())).text == "hello"


async def test_a_body_that_fails_closes_the_connection():
    async def handle(reader, writer):
        await reader.read()

    async def torn():
        yield b"x"
        raise ZeroDivisionError

    peer = Peer(handle)
    async with peer.client() as client:
        with pytest.raises(ZeroDivisionError):
            await client.post("/", content=torn())
        await peer.ended.wait()
        assert not peer.transport._open
