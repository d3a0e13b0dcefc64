"""Benchmark: file transfer to and from a container of antwort, with archives and with the plain API.

Upload creates a container and fills it from a directory; download copies all its files to an empty directory. The
directories are in memory if possible, because the time to create files on a disk varies and is not what is measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from measurements import Measurement, Row, Suite
from openai import OpenAI

from weakincentives.adapters.openai import ContainerConfig, ContainerFilesystem

FILES, FILE_SIZE = 2_000, 10_000
LARGE = 200_000_000
TIMES = 2  # the plain route takes a minute for the small files
_MEMORY = "/dev/shm"  # noqa: S108 - mkdtemp creates a private folder in it
MAX_ARCHIVE_RATIO = 0.1
"""Target: archive time ÷ plain time, for many small files."""


def suite() -> Suite:
    """Many small files and one large file; the routes alternate."""
    memory = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory(dir=memory) as directory,
        _server(Path(folder, "server")) as client,
    ):
        many, large = Path(directory, "many"), Path(directory, "large")
        _fill(many, FILES, FILE_SIZE)
        _fill(large, 1, LARGE)
        small = _measure_routes(client, many, Path(directory, "back"))
        single = _measure_routes(client, large, Path(directory, "back"))
    rows: list[Row] = []
    notes = [f"local files are in {memory or 'the temporary directory'}"]
    for what, measurements, count, size in (
        (f"{FILES:,} files, 20 MB", small, FILES, FILES * FILE_SIZE),
        ("one file of 200 MB", single, 1, LARGE),
    ):
        for direction in ("up", "down"):
            archive, plain = measurements[direction, True], measurements[direction, False]
            rows += [Row(f"{what} {direction}, archive", archive), Row(f"{what} {direction}, plain", plain)]
            notes += [_speed(f"{what} {direction}", archive, plain, count, size)]
            if count > 1:
                rows.append(
                    Row(f"{what} {direction}: archive ÷ plain", archive.ratio_to(plain), target=MAX_ARCHIVE_RATIO)
                )
    return Suite(rows, notes)


def _measure_routes(client: OpenAI, source: Path, target: Path) -> dict[tuple[str, bool], Measurement]:
    samples: defaultdict[tuple[str, bool], list[float]] = defaultdict(list)
    for archives in (True, False) * TIMES:
        config = ContainerConfig(archives=archives)
        filled = ContainerFilesystem(client=client, container_config=config, local_root=source)
        samples["up", archives].append(_seconds(filled.ensure_container))
        # A new filesystem on the same container has no cache, so it downloads everything.
        fresh = ContainerConfig(archives=archives, container_id=filled.container_id)
        files = ContainerFilesystem(client=client, container_config=fresh)
        with tempfile.TemporaryDirectory(dir=target.parent) as dest:
            samples["down", archives].append(_seconds(lambda files=files, dest=dest: files.download_all(Path(dest))))
            downloaded = sum(path.stat().st_size for path in Path(dest).rglob("*") if path.is_file())
        if downloaded != sum(path.stat().st_size for path in source.iterdir()):
            raise RuntimeError("some bytes were not downloaded")
        files.cleanup()
        filled.cleanup()
    return {key: Measurement.from_samples(values) for key, values in samples.items()}


def _seconds(action: Callable[[], object]) -> float:
    start_time = time.perf_counter()
    action()
    return time.perf_counter() - start_time


def _speed(what: str, archive: Measurement, plain: Measurement, count: int, size: int) -> str:
    def speed(measurement: Measurement) -> str:
        files = f"{count / measurement.p50:,.0f} files/s, " if count > 1 else ""
        return f"{files}{size / measurement.p50 / 1e6:,.0f} MB/s"

    return f"{what}: {speed(archive)} with an archive; {speed(plain)} one by one"


def _fill(directory: Path, count: int, size: int) -> None:
    directory.mkdir()
    for number in range(count):
        with (directory / f"file{number:05}.bin").open("wb") as file:
            for start in range(0, size, 1 << 20):
                file.write(os.urandom(min(1 << 20, size - start)))


@contextlib.contextmanager
def _server(folder: Path) -> Iterator[OpenAI]:
    folder.mkdir()
    (folder / "script.yaml").write_text(json.dumps({"answers": [{"reply": [{"text": "x"}]}]}), encoding="utf-8")
    config = {"models": {"m": {"kind": "scripted", "script": "script.yaml"}}, "log": {"level": "error"}}
    (folder / "antwort.yaml").write_text(json.dumps(config), encoding="utf-8")
    command = [sys.executable, "-m", "antwort", "serve", "--config", "antwort.yaml", "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None  # noqa: S101 - stdout is a pipe
            url = process.stdout.readline().split()[1]
            with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
                container = client.containers.create(name="warm")
                client.containers.files.create(container.id, file=("a", b"a"))
                client.containers.delete(container.id)
                yield client
        finally:
            process.terminate()
            process.communicate()
