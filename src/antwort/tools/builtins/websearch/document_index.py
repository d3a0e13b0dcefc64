"""Full-text index of pages in one SQLite file (FTS5): the cache of a tenant, or the pages of a folder.

The methods block on the disk: they are called in threads. A file that is not a valid database is replaced.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

_logger = logging.getLogger(__name__)

_VERSION: Final = 3
_MAX_WORDS: Final = 32
_MAX_REDIRECTS: Final = 1000
_WORD_RE: Final = re.compile(r"\w+")

_SCHEMA: Final = """
CREATE TABLE documents (
    id INTEGER PRIMARY KEY,
    url TEXT NOT NULL UNIQUE,
    host TEXT NOT NULL,
    title TEXT NOT NULL,
    text TEXT NOT NULL,
    is_page INTEGER NOT NULL,
    stored_at REAL NOT NULL,
    size INTEGER NOT NULL
);
CREATE INDEX documents_by_age ON documents (stored_at);
CREATE TABLE total (size INTEGER NOT NULL);
INSERT INTO total VALUES (0);
CREATE VIRTUAL TABLE words USING fts5 (
    title, text, content='documents', content_rowid='id', tokenize="unicode61 remove_diacritics 2"
);
CREATE TRIGGER added AFTER INSERT ON documents BEGIN
    UPDATE total SET size = size + new.size;
    INSERT INTO words (rowid, title, text) VALUES (new.id, new.title, new.text);
END;
CREATE TRIGGER removed AFTER DELETE ON documents BEGIN
    UPDATE total SET size = size - old.size;
    INSERT INTO words (words, rowid, title, text) VALUES ('delete', old.id, old.title, old.text);
END;
CREATE TABLE redirects (url TEXT PRIMARY KEY, target TEXT NOT NULL, hops TEXT NOT NULL, stored_at REAL NOT NULL);
CREATE TABLE files (path TEXT PRIMARY KEY, version TEXT NOT NULL, url TEXT);
"""


class Document(Struct, frozen=True):
    """A page as text; or, if `is_page` is false, what a search engine said about it."""

    url: str
    title: str
    text: str
    is_page: bool = True
    stored_at: float = 0.0
    """Seconds since the epoch; set by the index."""
    redirects: tuple[str, ...] = ()
    """The URLs that led to the document, after the one that was asked for; the last is `url`."""


class DocumentIndex:
    """Documents by URL, and a search over their words. Thread-safe."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._connection = _open(path)
        except sqlite3.DatabaseError:
            _logger.warning("the index %s is not a valid database, and is created again", path.name)
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            self._connection = _open(path)

    def close(self) -> None:
        with self._lock, suppress(sqlite3.Error):
            self._connection.close()

    # ── documents ────────────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, url: str) -> Document | None:
        """The document of a URL, or the one that it redirects to, which is as old as the older of the two."""
        with self._lock:
            redirect = self._connection.execute(
                "SELECT target, hops, stored_at FROM redirects WHERE url = ?", (url,)
            ).fetchone()
            target, hops, redirected_at = (url, "[]", math.inf) if redirect is None else redirect
            row = self._connection.execute(
                "SELECT url, title, text, is_page, stored_at FROM documents WHERE url = ?", (target,)
            ).fetchone()
        if row is None:
            return None
        document = _document(row)
        stored_at = min(document.stored_at, redirected_at)
        return msgspec.structs.replace(document, redirects=tuple(json.loads(hops)), stored_at=stored_at)

    def put(self, documents: Iterable[tuple[str, Document]]) -> None:
        """Store documents, each with its host. What an engine says about a page does not replace the page."""
        with self._lock, self._connection:
            for host, document in documents:
                if not document.is_page:
                    known = self._connection.execute(
                        "SELECT 1 FROM documents WHERE url = ? AND is_page", (document.url,)
                    ).fetchone()
                    if known is not None:
                        continue
                self._connection.execute("DELETE FROM documents WHERE url = ?", (document.url,))
                if document.is_page:
                    self._connection.execute("DELETE FROM redirects WHERE url = ?", (document.url,))
                size = len(document.url) + len(document.title) + len(document.text)
                self._connection.execute(
                    "INSERT INTO documents (url, host, title, text, is_page, stored_at, size) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (document.url, host, document.title, document.text, document.is_page, self._clock(), size),
                )

    def put_redirect(self, url: str, hops: Sequence[str]) -> None:
        """Note that a URL redirects through these URLs, to the last one. Each of them is checked when it is used."""
        with self._lock, self._connection:
            if hops[-1] != url:
                self._connection.execute("DELETE FROM documents WHERE url = ? AND is_page", (url,))
            row = (url, hops[-1], json.dumps(list(hops)), self._clock())
            self._connection.execute("INSERT OR REPLACE INTO redirects VALUES (?, ?, ?, ?)", row)

    def shrink(self, *, max_size: int, max_age: float) -> None:
        """Delete documents and redirects older than `max_age` seconds, and the oldest above `max_size` characters.

        Reads what it deletes, and the redirects, which are few: it is called for each page that is stored.
        """
        with self._lock, self._connection:
            self._connection.execute("DELETE FROM documents WHERE stored_at < ?", (self._clock() - max_age,))
            (size,) = self._connection.execute("SELECT size FROM total").fetchone()
            while size > max_size:
                oldest = self._connection.execute(
                    "SELECT id, size FROM documents ORDER BY stored_at, id LIMIT 1"
                ).fetchone()
                self._connection.execute("DELETE FROM documents WHERE id = ?", (oldest[0],))
                size -= oldest[1]
            self._connection.execute(
                "DELETE FROM redirects WHERE NOT EXISTS (SELECT 1 FROM documents WHERE url = redirects.target)"
            )
            self._connection.execute("DELETE FROM redirects WHERE stored_at < ?", (self._clock() - max_age,))
            newest = "SELECT url FROM redirects ORDER BY stored_at DESC, url LIMIT ?"
            self._connection.execute(f"DELETE FROM redirects WHERE url NOT IN ({newest})", (_MAX_REDIRECTS,))  # noqa: S608 - no values

    def search(self, text: str, *, limit: int, domains: tuple[str, ...] = (), since: float = 0.0) -> list[Document]:
        """Documents with words of the text, the best first; only those of these domains, stored since then."""
        words = list(dict.fromkeys(_WORD_RE.findall(text.lower())))[:_MAX_WORDS]
        if not words:
            return []
        matching = " OR ".join(f'"{word}"' for word in words)
        hosts = " OR ".join("(host = ? OR host LIKE ? ESCAPE '\\')" for _ in domains)
        condition = f" AND ({hosts})" if domains else ""
        parameters = [value for domain in domains for value in (domain, f"%.{_escaped(domain)}")]
        query = (
            "SELECT url, documents.title, documents.text, is_page, stored_at "  # noqa: S608 - no values, only marks
            "FROM words JOIN documents ON documents.id = words.rowid "
            f"WHERE words MATCH ? AND stored_at >= ?{condition} ORDER BY bm25(words, 4.0, 1.0), url LIMIT ?"
        )
        with self._lock:
            rows = self._connection.execute(query, (matching, since, *parameters, limit)).fetchall()
        return [_document(row) for row in rows]

    # ── files that documents were read from ──────────────────────────────────────────────────────────────────────────

    def file_versions(self) -> dict[str, str]:
        """The versions of the files that were read, by path."""
        with self._lock:
            return dict(self._connection.execute("SELECT path, version FROM files").fetchall())

    def put_file(self, path: str, version: str, host: str, document: Document | None) -> None:
        """Replace what is known of a file; without a document, it was read and has no text."""
        self.remove_files([path])
        if document is not None:
            self.put([(host, document)])
        with self._lock, self._connection:
            url = None if document is None else document.url
            self._connection.execute("INSERT INTO files VALUES (?, ?, ?)", (path, version, url))

    def remove_files(self, paths: Iterable[str]) -> None:
        """Remove files with their documents."""
        with self._lock, self._connection:
            for path in paths:
                self._connection.execute(
                    "DELETE FROM documents WHERE url IN (SELECT url FROM files WHERE path = ?)", (path,)
                )
                self._connection.execute("DELETE FROM files WHERE path = ?", (path,))


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA secure_delete = ON")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version != _VERSION:  # a new file; with the tables of another version this fails
            connection.executescript(f"{_SCHEMA} PRAGMA user_version = {_VERSION};")
    except BaseException:
        connection.close()
        raise
    return connection


def _document(row: tuple[str, str, str, int, float]) -> Document:
    url, title, text, is_page, stored_at = row
    return Document(url, title, text, bool(is_page), stored_at)


def _escaped(domain: str) -> str:
    return domain.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
