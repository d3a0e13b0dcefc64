"""Text extraction: HTML and PDF become text in a sandbox of their own; plain text is decoded here.

A page is hostile input to a parser, so each is parsed in a new sandbox that is ended afterwards: a page that takes the
parser over can only give a wrong text for itself. The sandboxes are no containers of the Containers API: they count
towards no quota of the tenant, and their number is limited here, fairly across tenants.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from antwort.containers.sandboxes.port import ExecutionResult, Sandbox, SandboxError, Sandboxes
from antwort.net.errors import QueueFull
from antwort.net.fair_semaphore import FairSemaphore
from antwort.net.fetch import FetchedPage
from antwort.tools.builtins.websearch.charsets import decode_text

_logger = logging.getLogger(__name__)

HTML_TYPES: Final = frozenset({"text/html", "application/xhtml+xml", ""})
PDF_TYPES: Final = frozenset({"application/pdf", "application/x-pdf"})
_TEXT_TYPES: Final = frozenset({"application/json", "application/ld+json", "application/xml", "application/yaml"})
_PROGRAM: Final = Path(__file__).with_name("extract_in_sandbox.py").read_text(encoding="utf-8")
_MAX_RESULT_BYTES: Final = 8 * 1024 * 1024
_MAX_TEXT: Final = 1_000_000
_MAX_CONCURRENT: Final = 4
_MAX_QUEUE: Final = 64
_NO_LIBRARY_RE: Final = re.compile(r"No module named '(resiliparse|pypdf)'")


class ExtractionFailed(Exception):
    """The text of a page could not be extracted. The message may be shown to a model."""


class PageText(Struct, frozen=True):
    """Title and text of a page."""

    title: str
    text: str


def is_readable(content_type: str) -> bool:
    """Whether a page of this type can be read as text."""
    return content_type in (HTML_TYPES | PDF_TYPES | _TEXT_TYPES) or content_type.startswith("text/")


class PageExtractor:
    """Extracts the text of pages, each in a new sandbox with this memory limit."""

    def __init__(self, sandboxes: Sandboxes, *, memory_limit: str, timeout: float = 15.0) -> None:
        self._sandboxes = sandboxes
        self._memory_limit = memory_limit
        self._timeout = timeout
        self._slots = FairSemaphore(_MAX_CONCURRENT, "pages", max_queue=_MAX_QUEUE, wait_timeout=timeout, retry_after=5)

    async def extract(self, tenant: str, page: FetchedPage) -> PageText:
        """Title and text of a page of a readable type; `ExtractionFailed`."""
        if page.content_type not in (HTML_TYPES | PDF_TYPES):
            return await asyncio.to_thread(plain_text, page)
        try:
            async with self._slots.slot(tenant):
                sandbox = await self._sandboxes.acquire(
                    tenant=tenant, memory_limit=self._memory_limit, timeout=self._timeout
                )
                try:
                    return await self._extract(sandbox, page)
                finally:
                    await self._sandboxes.release(sandbox)
        except QueueFull as error:
            raise ExtractionFailed("Too many pages are being read; try again later.") from error
        except SandboxError as error:
            _logger.warning("a page could not be read: %s", error)
            raise ExtractionFailed("The page could not be read: its sandbox failed.") from error

    async def _extract(self, sandbox: Sandbox, page: FetchedPage) -> PageText:
        await sandbox.write_file("page", _one_chunk(page.body))
        result, printed = None, ""
        code = f"CHARSET, IS_PDF = {page.charset!r}, {page.content_type in PDF_TYPES}\n{_PROGRAM.replace(_FUTURE, '')}"
        async with aclosing(sandbox.run(code, timeout=self._timeout)) as steps:
            async for step in steps:
                if isinstance(step, ExecutionResult):
                    result = step
                    printed = "".join(piece.text for piece in step.output)
        if result is None or result.status != "ok":
            if (missing := _NO_LIBRARY_RE.search(printed)) is not None:
                _logger.error("pages cannot be read: the Python of the sandboxes lacks %s", missing[1])
            status = "no result" if result is None else result.status
            raise ExtractionFailed(f"The page could not be read: its parser ended with '{status}'.")
        return await _read_result(sandbox)


_FUTURE: Final = "from __future__ import annotations\n"  # must be the first statement, and is not needed


async def _read_result(sandbox: Sandbox) -> PageText:
    data = bytearray()
    async with aclosing(sandbox.read_file("page.json")) as chunks:
        async for chunk in chunks:
            data += chunk
            if len(data) > _MAX_RESULT_BYTES:
                raise ExtractionFailed("The page could not be read: its text is too long.")
    try:
        found = msgspec.json.decode(data, type=PageText)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ExtractionFailed("The page could not be read: its parser wrote no valid result.") from error
    return PageText(found.title, found.text[:_MAX_TEXT])


def plain_text(page: FetchedPage) -> PageText:
    """The text of a page that needs no parser. Blocks for as long as a long text takes to decode."""
    return PageText("", decode_text(page.body, page.charset, _MAX_TEXT))


async def _one_chunk(data: bytes) -> AsyncIterator[bytes]:
    yield data
