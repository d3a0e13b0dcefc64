from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fake_web_site import TEA, pdf_document

from antwort.containers.sandboxes.local import LocalSandboxes
from antwort.containers.sandboxes.port import ExecutionResult, Output, SandboxLost, SandboxUnavailable
from antwort.net.fetch import FetchedPage
from antwort.tools.builtins.websearch.extraction import (
    ExtractionFailed,
    PageExtractor,
    PageText,
    is_readable,
    plain_text,
)

pytestmark = pytest.mark.anyio

HOSTILE = '<title>Tea</title><p>Tea costs 2 €.</p><script>import os</script><iframe src="file:///etc/passwd"></iframe>'


def html(text: str | bytes, charset: str = "") -> FetchedPage:
    data = text.encode(charset or "utf-8") if isinstance(text, str) else text
    return FetchedPage("https://tea.example/", "text/html", charset, data)


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
async def sandboxes(tmp_path_factory):
    opened = LocalSandboxes(tmp_path_factory.mktemp("state"), max_output=1 << 20)
    await opened.start()
    yield opened
    await opened.aclose()


async def test_the_main_text_of_a_page_is_extracted_in_a_sandbox(sandboxes):
    extractor = PageExtractor(sandboxes, memory_limit="1g")
    page = await extractor.extract("a", html(TEA))

    assert page.title == "Tea prices"
    assert "Grüße aus dem Kontor: 茶 und 🍵" in page.text
    assert not {"not text", "Imprint", "<p>"} & {word for word in ("not text", "Imprint", "<p>") if word in page.text}


@pytest.mark.parametrize(
    "page, title, text",
    [
        (html(HOSTILE), "Tea", "Tea costs 2 €."),
        (html("<title>Käse</title>Käse", "iso-8859-1"), "Käse", "Käse"),
        (html('<meta charset="shift_jis"><title>お茶</title>'.encode("shift_jis")), "お茶", ""),
        (html("Käse".encode(), "no-such-charset"), "", "Käse"),
        (html(b"<p>Tea", "base64"), "", "Tea"),
        (html("\ufeffKäse 茶".encode(), "iso-8859-1"), "", "Käse 茶"),
        (html("\ufeffKäse 茶".encode("utf-16-le"), "utf-8"), "", "Käse 茶"),
        (html('<meta charset="utf-8"><p>Käse'.encode("latin-1"), "iso-8859-1"), "", "Käse"),
        (html('<meta charset="no-such"><p>Käse'.encode()), "", "Käse"),
        (html("<p>①茶".encode("cp932"), "shift_jis"), "", "①茶"),
        (html(b"<p>2 \x80", "iso-8859-1"), "", "2 €"),
        (html("<p>茶です", "iso-2022-jp"), "", "茶です"),
        (html(b"\xff\xfe\x00" * 100), "", None),
        (html(b""), "", ""),
        (html("x = 1 < 2 && 'a'" * 10), "", None),
        (html("<p>no tags at all"), "", "no tags at all"),
    ],
)
async def test_any_bytes_are_read_or_fail(sandboxes, page, title, text):
    extractor = PageExtractor(sandboxes, memory_limit="1g")
    try:
        found = await extractor.extract("a", page)
    except ExtractionFailed:
        assert title is None
    else:
        assert title is None or found.title == title
        assert text is None or text in found.text


def pdf(data: bytes) -> FetchedPage:
    return FetchedPage("https://tea.example/x.pdf", "application/pdf", "", data)


async def test_the_text_of_a_pdf_is_extracted_in_a_sandbox(sandboxes):
    extractor = PageExtractor(sandboxes, memory_limit="1g")
    document = pdf_document("Oolong costs 12 euros.", "Sencha costs 20 euros.", title="Tea prices")

    assert await extractor.extract("a", pdf(document)) == PageText(
        "Tea prices", "Oolong costs 12 euros.\n\nSencha costs 20 euros."
    )
    assert await extractor.extract("a", pdf(pdf_document(""))) == PageText("", "")


BOMB = b"BT /F1 9 Tf 9 9 Td " + b"(tea) Tj " * 2_000_000 + b"ET"


@pytest.mark.parametrize(
    "data",
    [b"", b"%PDF-1.7", b"\0" * 1000, pdf_document("x")[:-150], pdf_document(loop=True), pdf_document(content=BOMB)],
    ids=["empty", "head", "zeros", "cut", "page tree that is a loop", "decompression bomb"],
)
async def test_a_hostile_pdf_harms_its_own_call_only(sandboxes, data):
    extractor = PageExtractor(sandboxes, memory_limit="1g", timeout=3)
    hostile, other = await asyncio.gather(
        extractor.extract("a", pdf(data)),
        extractor.extract("a", pdf(pdf_document("Tea."))),
        return_exceptions=True,
    )

    assert isinstance(hostile, ExtractionFailed | PageText)
    assert not isinstance(hostile, PageText) or len(hostile.text) <= 1_000_000
    assert isinstance(other, PageText)


async def test_a_page_that_occupies_its_parser_is_given_up(sandboxes):
    extractor = PageExtractor(sandboxes, memory_limit="1g", timeout=2)

    with pytest.raises(ExtractionFailed, match="ended with 'timeout'"):
        await extractor.extract("a", html("<div>" * 400_000))


async def test_pages_are_extracted_at_the_same_time(sandboxes):
    extractor = PageExtractor(sandboxes, memory_limit="1g", timeout=60)
    pages = await asyncio.gather(*(extractor.extract(str(n % 2), html(f"<p>page {n}")) for n in range(8)))

    assert [page.text for page in pages] == [f"page {n}" for n in range(8)]


class FakeSandboxes:
    """One fake sandbox, whose run ends in the given way; `open` is how many are not released."""

    def __init__(self, result: Any = "ok", written: bytes = b"", error: Exception | None = None) -> None:
        self.result = result
        self.written = written
        self.error = error
        self.open = 0

    async def acquire(self, **options):
        if isinstance(self.error, SandboxUnavailable):
            raise self.error
        self.open += 1
        return self

    async def release(self, sandbox):
        self.open -= 1

    async def write_file(self, path, content):
        async for _ in content:
            pass

    async def run(self, code, *, timeout):  # noqa: ASYNC109 - as the port has it
        if self.error is not None:
            raise self.error
        if self.result is not None:
            output = (Output("stderr", "ModuleNotFoundError: No module named 'resiliparse'"),)
            yield ExecutionResult(status=self.result, output=output)

    async def read_file(self, path):
        yield self.written


@pytest.mark.parametrize(
    "sandboxes, message",
    [
        (FakeSandboxes("error"), "parser ended with 'error'"),
        (FakeSandboxes("oom"), "parser ended with 'oom'"),
        (FakeSandboxes(None), "parser ended with 'no result'"),
        (FakeSandboxes(written=b"{"), "no valid result"),
        (FakeSandboxes(written=b'{"title": 5, "text": ""}'), "no valid result"),
        (FakeSandboxes(written=b"\xff"), "no valid result"),
        (FakeSandboxes(written=b"x" * (8 * 1024 * 1024 + 1)), "too long"),
        (FakeSandboxes(error=SandboxLost("gone")), "its sandbox failed"),
        (FakeSandboxes(error=SandboxUnavailable("none left at 10.0.0.1")), "its sandbox failed"),
    ],
)
async def test_a_sandbox_that_fails_or_lies_fails_the_page_and_is_released(sandboxes, message):
    with pytest.raises(ExtractionFailed, match=message) as caught:
        await PageExtractor(sandboxes, memory_limit="1g").extract("a", html("x"))

    assert "10.0.0.1" not in str(caught.value)
    assert sandboxes.open == 0


async def test_a_sandbox_without_the_library_is_reported_to_the_operator(caplog):
    sandboxes: Any = FakeSandboxes("error")
    with pytest.raises(ExtractionFailed):
        await PageExtractor(sandboxes, memory_limit="1g").extract("a", html("x"))

    assert "lacks resiliparse" in caplog.text


async def test_a_lying_text_is_cut():
    written = json.dumps({"title": "t", "text": "x" * 2_000_000}).encode()
    sandboxes: Any = FakeSandboxes(written=written)
    page = await PageExtractor(sandboxes, memory_limit="1g").extract("a", html("x"))

    assert len(page.text) == 1_000_000


@pytest.mark.parametrize(
    "kind, charset, data, text",
    [
        ("text/plain", "utf-8", "\ufeffTea 🍵 ".encode(), "Tea 🍵"),
        ("text/markdown", "", b"K\xe4se", "Käse"),
        ("application/json", "no-such-charset", b"{}", "{}"),
        ("text/plain", "base64", b"dGVh", "dGVh"),
        ("text/plain", "zlib", b"tea", "tea"),
    ],
)
async def test_plain_text_needs_no_sandbox(kind, charset, data, text):
    page = FetchedPage("https://tea.example/", kind, charset, data)

    assert plain_text(page) == PageText("", text)
    sandboxes: Any = FakeSandboxes(error=SandboxLost("x"))
    assert (await PageExtractor(sandboxes, memory_limit="1g").extract("a", page)).text == text


@pytest.mark.parametrize(
    "kind",
    [
        "text/html",
        "application/xhtml+xml",
        "",
        "text/plain",
        "application/json",
        "text/csv",
        "application/pdf",
    ],
)
def test_readable_types(kind):
    assert is_readable(kind)


@pytest.mark.parametrize("kind", ["application/zip", "image/png", "application/octet-stream", "video/mp4", "html"])
def test_other_types(kind):
    assert not is_readable(kind)
