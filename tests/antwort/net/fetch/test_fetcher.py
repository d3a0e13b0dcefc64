from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from urllib.parse import quote

import pytest
from private_ca import PrivateCa

from antwort.net.fetch import AddressPolicy, Fetcher, FetchError, FetchLimits, FetchRefused
from antwort.net.fetch.fetcher import USER_AGENT, check_url

pytestmark = pytest.mark.anyio

LOOPBACK = AddressPolicy(["127.0.0.1/32"])


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request):
    return "asyncio", {"use_uvloop": request.param}


class FakeResolver:
    """Resolves names to the given addresses, one list for each request; the last one repeats."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = [*answers]
        self.asked: list[str] = []

    async def __call__(self, host, port):
        self.asked.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def fetcher(site, *, policy=LOOPBACK, resolve=None, **limits) -> Fetcher:
    options = {} if resolve is None else {"resolve": resolve}
    return Fetcher(
        policy, FetchLimits(**{"ports": [site.port], "timeout": 5.0, "max_bytes": 100_000, **limits}), **options
    )


def is_html(kind: str) -> bool:
    return kind in ("", "text/html")


async def get(site, path: str, **options):
    return await fetcher(site, **options).fetch(f"{site.url}{path}", accepts=is_html)


async def test_a_page_is_fetched_with_its_type_and_charset(site):
    page = await get(site, "/tea#oolong")

    assert (page.url, page.content_type, page.charset) == (f"{site.url}/tea", "text/html", "utf-8")
    assert "Grüße" in page.body.decode()


async def test_only_what_is_needed_is_sent(site):
    site.requests.clear()
    await get(site, "/tea")
    await get(site, "/tea")
    (_, first), (_, second) = site.requests

    assert first == second, "no cookies"
    assert first["user-agent"] == USER_AGENT
    assert set(first) == {"host", "user-agent", "accept", "accept-encoding", "connection"}


@pytest.mark.parametrize("path", ["/gzip", "/deflate", "/deflate?raw=1"])
async def test_compressed_pages_are_decoded(site, path):
    assert b"Tea prices" in (await get(site, path)).body


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_followed(site, status):
    page = await get(site, f"/redirect?status={status}&to=/redirect%3Fto%3D/tea")

    assert page.url == f"{site.url}/tea"


@pytest.mark.parametrize(
    "path, message",
    [
        ("/loop", "redirects more than"),
        ("/nothing", "status 404"),
        ("/cut", "incomplete"),
        ("/headers", "incomplete or not valid"),
        ("/not-gzip", "not valid gzip"),
        ("/cut-gzip", "incomplete"),
        ("/redirect?status=304&to=/tea", "status 304"),
    ],
)
async def test_a_page_that_fails_says_why(site, path, message):
    with pytest.raises(FetchError, match=message):
        await get(site, path)


@pytest.mark.parametrize("path", ["/bomb", "/big", "/endless"])
async def test_a_page_that_is_too_large_is_refused(site, path):
    with pytest.raises(FetchRefused, match="exceeds 100000 bytes"):
        await get(site, path)


@pytest.mark.parametrize("path", ["/slow", "/silent"])
async def test_a_page_that_does_not_end_is_given_up(site, path):
    with pytest.raises(FetchError, match=r"within 0.5 s|does not answer"):
        await get(site, path, timeout=0.5)


@pytest.mark.parametrize("path", ["/pdf", "/text"])
async def test_other_content_types_are_refused(site, path):
    with pytest.raises(FetchRefused, match=r"content type is (application/pdf|text/plain)"):
        await get(site, path)


async def test_an_encoding_that_was_not_offered_is_refused(site):
    with pytest.raises(FetchRefused, match="'br' is not supported"):
        await get(site, "/brotli")


# ── addresses ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f.1", "0177.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "0"],
)
async def test_loopback_is_refused_in_every_form(site, host):
    before = len(site.requests)
    with pytest.raises(FetchError, match=r"not on the public internet|unusual form|not valid"):
        await fetcher(site, policy=AddressPolicy()).fetch(f"http://{host}:{site.port}/tea", accepts=is_html)

    assert len(site.requests) == before


@pytest.mark.parametrize("answer", [["10.0.0.1"], ["1.1.1.1", "10.0.0.1"], ["64:ff9b::7f00:1"], ["fe80::1%2"]])
async def test_a_name_with_any_special_address_is_refused(site, answer):
    with pytest.raises(FetchRefused, match=r"^tea.example is not on the public internet$"):
        await fetcher(site, resolve=FakeResolver(answer)).fetch(f"http://tea.example:{site.port}/", accepts=is_html)


async def test_a_name_that_rebinds_is_resolved_once_and_the_connection_is_pinned(site):
    resolve = FakeResolver(["127.0.0.1"], ["127.0.0.2"])
    page = await fetcher(site, resolve=resolve).fetch(f"http://rebind.example:{site.port}/tea", accepts=is_html)

    assert b"Tea prices" in page.body
    assert resolve.asked == ["rebind.example"]
    assert site.requests[-1][1]["host"] == f"rebind.example:{site.port}"


async def test_a_redirect_to_a_name_that_rebinds_is_checked_again(site):
    resolve = FakeResolver(["127.0.0.1"], ["169.254.169.254"])
    with pytest.raises(FetchRefused, match="not on the public internet"):
        await fetcher(site, resolve=resolve).fetch(
            f"http://rebind.example:{site.port}/redirect?to=/tea", accepts=is_html
        )

    assert resolve.asked == ["rebind.example"] * 2


@pytest.mark.parametrize(
    "target",
    [
        *("http://127.0.0.2:{port}/tea", "http://localhost:{port}/tea", "http://[::1]:{port}/tea"),
        *("http://169.254.169.254:{port}/latest/", "//10.0.0.1:{port}/"),
    ],
)
async def test_redirects_to_special_addresses_are_refused(site, target):
    location = quote(target.format(port=site.port))
    with pytest.raises(FetchRefused, match="not on the public internet"):
        await get(site, f"/redirect?to={location}", policy=AddressPolicy(["127.0.0.1/32"]), resolve=resolver)


async def resolver(host, port):
    """As the operating system resolves these: loopback is another address here than that of the site."""
    return {"localhost": ["127.0.0.3"]}[host]


@pytest.mark.parametrize(
    "location",
    [
        "file:///etc/passwd",
        "ftp://tea.example/",
        "javascript:alert(1)",
        "http://user@127.0.0.1/",
        "gopher://x",
        "http://2130706434/",
    ],
)
async def test_redirects_to_other_schemes_are_refused(site, location):
    with pytest.raises(FetchRefused):
        await get(site, f"/redirect?to={quote(location)}")


async def test_a_redirect_to_another_port_is_refused(site):
    with pytest.raises(FetchRefused, match="port 22 is not allowed"):
        await get(site, "/redirect?to=http://127.0.0.1:22/")


async def test_each_host_must_be_one_that_the_caller_allows(site):
    allowed = {"127.0.0.1"}
    page = await fetcher(site).fetch(f"{site.url}/tea", accepts=is_html, allows_host=allowed.__contains__)
    assert page.body
    with pytest.raises(FetchRefused, match="localhost is not among the allowed domains"):
        await fetcher(site).fetch(
            f"{site.url}/redirect?to=http://localhost:{site.port}/tea",
            accepts=is_html,
            allows_host=allowed.__contains__,
        )


@pytest.mark.parametrize("host", ["münchen.example", "xn--mnchen-3ya.example"])
async def test_a_name_is_checked_and_resolved_in_ascii(site, host):
    resolve, asked = FakeResolver(["127.0.0.1"]), list[str]()
    fetching = fetcher(site, resolve=resolve)
    await fetching.fetch(
        f"http://{host}:{site.port}/tea", accepts=is_html, allows_host=lambda host: asked.append(host) is None
    )
    await fetching.fetch(f"http://faß.example:{site.port}/tea", accepts=is_html)

    assert asked == ["xn--mnchen-3ya.example"]
    assert resolve.asked == ["xn--mnchen-3ya.example", "xn--fa-hia.example"], "and not fass.example"


async def test_slow_name_servers_occupy_no_threads_of_the_server_or_of_another_tenant(monkeypatch, site):
    answered = threading.Event()

    def resolve(host, port, *_, **__):
        if host.startswith("slow"):
            answered.wait(30)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    limits, quick = FetchLimits(timeout=10, ports=[80, site.port]), f"http://tea.example:{site.port}/tea"
    fetching = Fetcher(LOOPBACK, limits)
    slow = [
        asyncio.create_task(fetching.fetch(f"http://slow{number}.example/", accepts=is_html, tenant="a"))
        for number in range(64)
    ]
    try:
        assert (await fetching.fetch(quick, accepts=is_html, tenant="b")).url == quick
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        assert (await fetching.fetch(quick, accepts=is_html, tenant="b")).url == quick
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "free"), 10) == "free"
    finally:
        answered.set()


async def test_the_next_address_is_tried_where_one_does_not_answer(site):
    policy = AddressPolicy(["127.0.0.0/8"])
    resolve = FakeResolver(["127.9.9.9", "127.0.0.1"])
    page = await fetcher(site, policy=policy, resolve=resolve).fetch(
        f"http://tea.example:{site.port}/tea", accepts=is_html
    )

    assert page.url == f"http://tea.example:{site.port}/tea"
    with pytest.raises(FetchError, match=r"tea.example could not be read: no connection"):
        await fetcher(site, policy=policy, resolve=FakeResolver(["127.9.9.9"])).fetch(
            f"http://tea.example:{site.port}/tea", accepts=is_html
        )


@pytest.mark.parametrize("answer", [[], OSError("no such name"), UnicodeError("label too long")])
async def test_a_name_without_an_address_cannot_be_resolved(site, answer):
    async def resolve(host, port):
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(FetchError, match=r"the name none.example cannot be resolved"):
        await fetcher(site, resolve=resolve).fetch(f"http://none.example:{site.port}/", accepts=is_html)


async def test_the_time_limit_includes_the_resolver(site):
    async def resolve(host, port):
        await asyncio.sleep(60)
        return []

    with pytest.raises(FetchError, match=r"within 0.2 s"):
        await fetcher(site, resolve=resolve, timeout=0.2).fetch(f"http://slow.example:{site.port}/", accepts=is_html)


async def test_certificates_are_checked_against_the_name(tmp_path):
    authority = PrivateCa(tmp_path)

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 3\r\n\r\ntea")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=authority.server_context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        limits, resolve = FetchLimits(ports=[port]), FakeResolver(["127.0.0.1"])
        trust = ssl.create_default_context(cafile=str(authority.ca_file))
        trusting = Fetcher(LOOPBACK, limits, resolve=resolve, ssl_context=trust)
        page = await trusting.fetch(f"https://127.0.0.1:{port}/", accepts=is_html)
        assert page.body == b"tea"
        for fetching, host in ((trusting, "tea.example"), (Fetcher(LOOPBACK, limits), "127.0.0.1")):
            with pytest.raises(FetchError, match="certificate is not valid"):
                await fetching.fetch(f"https://{host}:{port}/", accepts=is_html)


# ── URLs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "url, message",
    [
        ("ftp://tea.example/", "must start with"),
        ("file:///etc/passwd", "must start with"),
        ("tea.example", "must start with"),
        ("http://", "must start with"),
        ("https:tea.example", "must start with"),
        ("http://user:pass@tea.example/", "user name or password"),
        ("http://user@tea.example/", "user name or password"),
        ("http://tea.example/a b", "spaces or control"),
        ("http://tea.example/\r\nhost: x", "spaces or control"),
        ("http://tea.example\x00/", "spaces or control"),
        ("http://127.1/", "unusual form"),
        ("http://tea.example.0x1/", "unusual form"),
        ("http://127.0.0.1.:80/", "unusual form"),
        ("http://[::1/", "not valid"),
        ("http://" + "x" * 5000, "longer than"),
    ],
)
def test_other_urls_are_refused(url, message):
    with pytest.raises(FetchRefused, match=message):
        check_url(url)


def test_a_url_has_no_fragment():
    assert str(check_url("HTTPS://Tea.Example/grün#top")) == "https://tea.example/gr%C3%BCn"
