"""Local engine: searches a folder of saved pages (HTML, Markdown, text), and needs no network.

The URL of a file is named in its first lines by a comment, `<!-- url: https://… -->` or the `<!-- saved from url=… -->`
of browsers. Otherwise its path is the URL, as `wget --mirror` lays out files: `example.com/tea.html` is
`https://example.com/tea.html`. Files that changed are read again before a search. HTML is read in a sandbox, since it
may be hostile; without a sandbox, HTML and PDF files are left out.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

from antwort.net.fetch import FetchedPage, FetchRefused
from antwort.net.fetch.fetcher import check_url
from antwort.tools.builtins.websearch.document_index import Document, DocumentIndex
from antwort.tools.builtins.websearch.domains import comparable_url, host_of
from antwort.tools.builtins.websearch.engines.port import SavedPage, SearchQuery, SearchResult
from antwort.tools.builtins.websearch.extraction import ExtractionFailed, PageExtractor, plain_text
from antwort.tools.builtins.websearch.results import excerpt

_logger = logging.getLogger(__name__)

MAX_FILES: Final = 50_000
MAX_FILE_BYTES: Final = 5 * 1024 * 1024
_TENANT: Final = "antwort:web_search"  # of the sandboxes that read the operator's files
_PARSED: Final = {".html": "text/html", ".htm": "text/html", ".xhtml": "text/html", ".pdf": "application/pdf"}
"""The types, by suffix, of files that are read in a sandbox."""
_TEXT: Final = frozenset({".md", ".markdown", ".txt"})
_HEAD: Final = 2048
_URL_RE: Final = re.compile(
    rb"<!--\s*(?:url:\s*|saved from url=\(\d{4}\))(https?://[^\s>]{1,2000})\s*-->", re.IGNORECASE
)
_TITLE_RE: Final = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)


class LocalEngine:
    """The pages of a folder. `wait` is how long a search waits for files to be read; what is missing is found later."""

    is_offline = True

    def __init__(
        self, folder: Path, index: DocumentIndex, extractor: PageExtractor | None, *, wait: float = 10.0
    ) -> None:
        self._folder = folder
        self._index = index
        self._extractor = extractor
        self._wait = wait
        self._update: asyncio.Task[None] | None = None

    async def search(self, query: SearchQuery) -> list[SearchResult]:
        await self._refresh()
        return await asyncio.to_thread(self._find, query)

    def _find(self, query: SearchQuery) -> list[SearchResult]:
        found = self._index.search(query.text, limit=query.max_results, domains=query.domains)
        return [SearchResult(one.url, one.title, excerpt(one.text, query.text, query.max_text)) for one in found]

    async def page(self, url: str) -> SavedPage | None:
        await self._refresh()
        document = await asyncio.to_thread(self._index.get, comparable_url(url))
        return None if document is None else SavedPage(document.url, document.title, document.text)

    async def aclose(self) -> None:
        if self._update is not None:
            self._update.cancel()
            await asyncio.gather(self._update, return_exceptions=True)
        await asyncio.to_thread(self._index.close)

    # ── reading the folder ───────────────────────────────────────────────────────────────────────────────────────────

    async def _refresh(self) -> None:
        """Read the files that changed since the last time. A long update continues behind the searches."""
        if self._update is None or self._update.done():
            self._update = asyncio.create_task(self._read_changes())
        await asyncio.wait([self._update], timeout=self._wait)
        if self._update.done() and (error := self._update.exception()) is not None:
            _logger.error("the folder of saved pages cannot be read", exc_info=error)

    async def _read_changes(self) -> None:
        present = await asyncio.to_thread(lambda: dict(self._files()))
        known = await asyncio.to_thread(self._index.file_versions)
        removed = [path for path in known if path not in present]
        if removed:
            await asyncio.to_thread(self._index.remove_files, removed)
        for path, version in present.items():
            if known.get(path) != version:
                document = await self._read(path)
                host = "" if document is None else host_of(document.url)
                await asyncio.to_thread(self._index.put_file, path, version, host, document)

    def _files(self) -> Iterator[tuple[str, str]]:
        """Paths below the folder, and versions. Links are not followed."""
        readable = _TEXT | _PARSED.keys() if self._extractor is not None else _TEXT
        count = 0
        for directory, folders, names in os.walk(self._folder):
            folders.sort()
            for name in sorted(names):
                path = Path(directory, name)
                if path.suffix.lower() not in readable:
                    continue
                try:
                    status = path.lstat()
                except OSError:
                    continue
                is_file = stat.S_ISREG(status.st_mode)  # reading a named pipe would not end
                if is_file and status.st_size <= MAX_FILE_BYTES and count < MAX_FILES:
                    count += 1
                    yield str(path.relative_to(self._folder)), f"{status.st_mtime_ns}:{status.st_size}"

    async def _read(self, path: str) -> Document | None:
        try:
            data = await asyncio.to_thread((self._folder / path).read_bytes)
        except OSError:
            return None
        url = _url(path, data)
        if url is None:
            _logger.warning("the saved page %s has no valid URL", path)
            return None
        suffix = Path(path).suffix.lower()
        if suffix in _TEXT:
            text = _URL_RE.sub(b"", data[:_HEAD], count=1) + data[_HEAD:]
            document = await asyncio.to_thread(plain_text, FetchedPage(url, "text/markdown", "", text))
            heading = _TITLE_RE.search(document.text)
            return Document(url, heading[1] if heading else Path(path).stem, document.text)
        if self._extractor is None:
            return None
        try:
            page = await self._extractor.extract(_TENANT, FetchedPage(url, _PARSED[suffix], "", data))
        except ExtractionFailed as error:
            _logger.warning("the saved page %s cannot be read: %s", path, error)
            return None
        return Document(url, page.title or Path(path).stem, page.text)


def _url(path: str, data: bytes) -> str | None:
    """The URL of a saved page; None if it is not valid."""
    named = _URL_RE.search(data[:_HEAD])
    try:
        return comparable_url(str(check_url(named[1].decode("ascii") if named else f"https://{quote(path)}")))
    except (FetchRefused, UnicodeError):
        return None
