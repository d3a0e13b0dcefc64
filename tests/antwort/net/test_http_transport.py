from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import ssl
from contextlib import asynccontextmanager, suppress

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from antwort.net.http_transport import _HELD, HttpTransport

pytestmark = pytest.mark.anyio

HELLO = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
LARGE = 1 << 20


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request):
    return "asyncio", {"use_uvloop": request.param}


class Peer:
    """A server that says what a test tells it to, byte for byte."""

    def __init__(self, answer, *, tls: ssl.SSLContext | None = None) -> None:
        self._answer = answer
        self._tls = tls
        self.connections = 0
        self.ended = asyncio.Event()

    async def _serve(self, reader, writer) -> None:
        self.connections += 1
        try:
            await self._answer(reader, writer)
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
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self.transport = HttpTransport(**options)
        async with server, httpx2.AsyncClient(base_url=url, transport=self.transport, timeout=limits) as client:
            yield client


async def request_of(reader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
    return head + await reader.readexactly(length)


def says(*answers: bytes, hang_up: bool = False):
    """One answer for each request, the last again and again."""

    async def answer(reader, writer):
        left = list(answers)
        while True:
            await request_of(reader)
            writer.write(left.pop(0) if len(left) > 1 else left[0])
            await writer.drain()
            if hang_up:
                return

    return answer


async def get(client) -> str:
    return (await client.post("/", content=b"{}")).text


# ── what is sent and what comes ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_request_is_sent_as_httpx_has_made_it():
    seen = []

    async def answer(reader, writer):
        seen.append(await request_of(reader))
        writer.write(HELLO)

    async with Peer(answer).client() as client:
        response = await client.post("/v1/chat?x=1", content=b"body", headers={"x-team": "a"})

    assert (response.status_code, response.content) == (200, b"hello")
    assert seen[0].startswith(b"POST /v1/chat?x=1 HTTP/1.1\r\n")
    assert b"x-team: a\r\n" in seen[0].lower()
    assert seen[0].endswith(b"\r\n\r\nbody")


@pytest.mark.parametrize(
    "answer, text",
    [
        pytest.param(HELLO, "hello", id="a length"),
        pytest.param(CHUNKED + b"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", "hello", id="pieces"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\nhello", "hello", id="until the end of the connection"),
        pytest.param(b"HTTP/1.1 100 Continue\r\nx: y\r\n\r\n" + HELLO, "hello", id="after a word in between"),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", "", id="nothing"),
    ],
)
async def test_an_answer_ends_as_it_says(answer, text):
    async with Peer(says(answer, hang_up=True)).client() as client:
        response = await client.post("/")

    assert response.text == text
    assert "x" not in response.headers


async def test_pieces_come_when_they_are_sent():
    more = asyncio.Event()

    async def answer(reader, writer):
        await request_of(reader)
        writer.write(CHUNKED + b"3\r\none\r\n")
        await more.wait()
        writer.write(b"3\r\ntwo\r\n0\r\n\r\n")

    async with Peer(answer).client() as client, client.stream("POST", "/") as response:
        pieces = response.aiter_raw()
        assert await anext(pieces) == b"one"
        more.set()
        assert [piece async for piece in pieces] == [b"two"]


async def test_a_header_cannot_hold_another():
    async with Peer(says(HELLO)).client() as client:
        with pytest.raises(httpx2.LocalProtocolError):
            await client.post("/", headers={"authorization": "Bearer a\r\nx-admin: 1"})


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/", "http:///v1"])
async def test_what_is_no_address_of_a_server_is_refused(url):
    async with httpx2.AsyncClient(transport=HttpTransport()) as client:
        with pytest.raises(httpx2.UnsupportedProtocol):
            await client.post(url)


# ── connections ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_connection_is_used_again():
    peer = Peer(says(HELLO))
    async with peer.client() as client:
        assert [await get(client) for _ in range(3)] == ["hello"] * 3

    assert peer.connections == 1


async def test_at_once_each_has_its_own_and_only_so_many_are_kept():
    peer = Peer(says(HELLO))
    async with peer.client(keep=2) as client:
        await asyncio.gather(*(get(client) for _ in range(5)))
        assert peer.connections == 5
        await asyncio.gather(*(get(client) for _ in range(3)))

    assert peer.connections == 6


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(HELLO.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"), id="it says that it hangs up"),
        pytest.param(HELLO.replace(b"1.1", b"1.0"), id="it is of an older kind"),
        pytest.param(HELLO + b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil", id="it answers what nobody asked"),
    ],
)
async def test_a_connection_that_cannot_be_trusted_is_not_used_again(first):
    peer = Peer(says(first, HELLO))
    async with peer.client() as client:
        assert [await get(client) for _ in range(2)] == ["hello"] * 2

    assert peer.connections == 2


async def test_a_connection_that_was_closed_meanwhile_is_not_used_again():
    peer = Peer(says(HELLO, hang_up=True))
    async with peer.client() as client:
        for _ in range(3):
            assert await get(client) == "hello"
            while peer.transport._open:  # noqa: ASYNC110 - nothing tells us when our side has heard of it
                await asyncio.sleep(0.01)

    assert peer.connections == 3


async def test_a_connection_that_nobody_needs_is_closed_after_a_while():
    peer = Peer(says(HELLO))
    async with peer.client(expiry=0.05) as client:
        await get(client)
        await asyncio.wait_for(peer.ended.wait(), 5)


@pytest.mark.parametrize("leave", ["break", "cancel"])
async def test_whoever_leaves_in_the_middle_takes_the_connection_along(leave):
    async def answer(reader, writer):
        await request_of(reader)
        writer.write(CHUNKED + b"3\r\none\r\n")
        await reader.read()  # until we hang up

    begun = asyncio.Event()

    async def ask(client):
        async with client.stream("POST", "/") as response:
            async for _ in response.aiter_raw():
                begun.set()
                if leave == "break":
                    return

    peer = Peer(answer)
    async with peer.client() as client:
        task = asyncio.create_task(ask(client))
        await begun.wait()
        if leave == "cancel":
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.wait_for(peer.ended.wait(), 5)


# ── what can go wrong ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"", id="nothing at all"),
        pytest.param(HELLO[:20], id="in the head"),
        pytest.param(HELLO[:-1], id="before the announced length"),
        pytest.param(CHUNKED + b"3\r\nhel\r\n", id="before the last piece"),
        pytest.param(b"SSH-2.0-OpenSSH\r\n\r\n", id="another protocol"),
        pytest.param(CHUNKED + b"xyz\r\n", id="garbled pieces"),
        pytest.param(b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n", id="an upgrade"),
        pytest.param(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000, id="endless headers"),
    ],
)
async def test_an_answer_that_breaks_off_or_is_none_is_an_error(answer):
    async with Peer(says(answer, hang_up=True)).client() as client:
        with pytest.raises(httpx2.RemoteProtocolError):
            await get(client)


async def test_what_came_before_the_break_is_there():
    peer = Peer(says(CHUNKED + b"3\r\nhel\r\n", hang_up=True))
    async with peer.client() as client, client.stream("POST", "/") as response:
        pieces = response.aiter_raw()
        assert await anext(pieces) == b"hel"
        with pytest.raises(httpx2.RemoteProtocolError):
            await anext(pieces)


async def test_nobody_there(free_tcp_port):
    async with httpx2.AsyncClient(transport=HttpTransport()) as client:
        with pytest.raises(httpx2.ConnectError):
            await client.post(f"http://127.0.0.1:{free_tcp_port}/")
        with pytest.raises(httpx2.ConnectError):
            await client.post(f"http://{'x' * 70}.invalid/")


@pytest.mark.parametrize("answer", [b"", CHUNKED + b"3\r\none\r\n"], ids=["before the answer", "in the middle of it"])
async def test_silence_has_a_limit(answer):
    async def quiet(reader, writer):
        await request_of(reader)
        writer.write(answer)
        await reader.read()

    peer = Peer(quiet)
    async with peer.client(0.1) as client:
        with pytest.raises(httpx2.ReadTimeout):
            await get(client)
        await asyncio.wait_for(peer.ended.wait(), 5)


async def test_the_limit_is_for_each_silence_and_not_for_the_readers_own_time():
    async def slow(reader, writer):
        await request_of(reader)
        writer.write(CHUNKED)
        for _ in range(5):
            await asyncio.sleep(0.25)
            writer.write(b"3\r\none\r\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async with Peer(slow).client(0.9) as client, client.stream("POST", "/") as response:
        pieces = response.aiter_raw()
        assert await anext(pieces) == b"one"
        await asyncio.sleep(1.2)
        assert b"".join([piece async for piece in pieces]) == b"one" * 4


async def test_an_upstream_that_takes_nothing_is_not_waited_for():
    async def deaf(reader, writer):
        await asyncio.sleep(60)

    limits = httpx2.Timeout(5.0, write=0.2)
    async with Peer(deaf).client(limits) as client:
        with pytest.raises(httpx2.WriteTimeout):
            await client.post("/", content=b"x" * (32 * LARGE))


async def test_a_refusal_in_the_middle_of_a_large_request_is_heard():
    async def refuse(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
        await writer.drain()
        await reader.read(1)
        await asyncio.sleep(60)

    peer = Peer(refuse)
    async with peer.client() as client:
        for _ in range(2):  # and nothing else is sent behind the half of it
            response = await client.post("/", content=b"x" * (32 * LARGE))
            assert (response.status_code, response.text) == (413, "no")

    assert peer.connections == 2


async def test_a_slow_reader_holds_the_sender_back():
    sent = 0

    async def flood(reader, writer):
        nonlocal sent
        await request_of(reader)
        writer.write(CHUNKED)
        for _ in range(200):
            writer.write(b"%x\r\n%b\r\n" % (LARGE, b"x" * LARGE))
            await writer.drain()
            sent += LARGE
        writer.write(b"0\r\n\r\n")

    async with Peer(flood).client() as client, client.stream("POST", "/") as response:
        pieces = response.aiter_raw()
        got = len(await anext(pieces))
        await asyncio.sleep(0.5)
        assert sent < 50 * LARGE
        got += sum([len(piece) async for piece in pieces])

    assert got == 200 * LARGE


async def test_an_answer_that_is_whole_but_not_wanted_leaves_the_connection_to_the_next():
    length = _HELD + 1  # with its last byte it is too much to take more, and whole
    large = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (length, b"x" * length)
    peer = Peer(says(large, HELLO))
    async with peer.client() as client:
        async with client.stream("POST", "/"):
            while not next(iter(peer.transport._open))._whole:  # noqa: ASYNC110 - nothing tells us when it is
                await asyncio.sleep(0.01)
        assert await get(client) == "hello"

    assert peer.connections == 1


# ── TLS ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate of 127.0.0.1 that nobody trusts by itself, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "loopback")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture
def tls(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


async def test_tls(tls, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    peer = Peer(says(HELLO), tls=tls)
    async with peer.client() as client:
        assert [await get(client) for _ in range(2)] == ["hello"] * 2

    assert peer.connections == 1


async def test_a_certificate_that_nobody_knows_is_refused(tls):
    async with Peer(says(HELLO), tls=tls).client() as client:
        with pytest.raises(httpx2.ConnectError, match="certificate"):
            await get(client)


async def test_a_unix_socket_is_asked_whatever_the_address_says(tmp_path):
    async def answer(reader, writer):
        while await request_of(reader):
            writer.write(HELLO)

    peer = Peer(answer)
    server = await asyncio.start_unix_server(peer._serve, str(tmp_path / "s"))
    transport = HttpTransport(uds=str(tmp_path / "s"))
    async with server, httpx2.AsyncClient(base_url="http://sandbox", transport=transport) as client:
        assert [(await client.get("/")).text for _ in range(2)] == ["hello", "hello"]
    assert peer.connections == 1

    nobody = HttpTransport(uds=str(tmp_path / "none"))
    async with httpx2.AsyncClient(base_url="http://sandbox", transport=nobody) as client:
        with pytest.raises(httpx2.ConnectError):
            await client.get("/")


async def test_a_connection_for_one_request_is_not_used_again():
    peer = Peer(says(HELLO))
    async with peer.client() as client:
        for _ in range(2):
            assert (await client.get("/", headers={"connection": "close"})).text == "hello"
        assert peer.connections == 2
        assert not peer.transport._idle
