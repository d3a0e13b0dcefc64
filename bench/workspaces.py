"""How long files take into a container and out of it, by the plain API and by archives, at the real server.

Up is a container that is made and filled from a directory; down is everything in it, to a directory that is empty. The
directories are in memory where the machine has such a place, because the way is measured and not the disk: that makes
files at a pace of its own, which depends on what was deleted there before, and the same for both routes.
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

from openai import OpenAI
from readings import Reading, Row, Suite

from weakincentives.adapters.openai import ContainerConfig, ContainerFilesystem

FILES, FILE_SIZE = 2_000, 10_000
LARGE = 200_000_000
TIMES = 2  # the plain route takes a minute for the small files
_MEMORY = "/dev/shm"  # noqa: S108 - made by mkdtemp below it
FACTOR = 0.1
"""What the archive route may take of the plain one's time, for many small files."""


def suite() -> Suite:
    """Many small files, and a large one, by both routes in turns."""
    memory = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with (
        tempfile.TemporaryDirectory() as place,
        tempfile.TemporaryDirectory(dir=memory) as directory,
        _server(Path(place, "server")) as client,
    ):
        many, large = Path(directory, "many"), Path(directory, "large")
        _fill(many, FILES, FILE_SIZE)
        _fill(large, 1, LARGE)
        small = _measured(client, many, Path(directory, "back"))
        single = _measured(client, large, Path(directory, "back"))
    rows: list[Row] = []
    notes = [f"files of this machine are in {memory or 'its temporary directory, on whatever disk that is'}"]
    for what, readings, count, size in (
        (f"{FILES:,} files, 20 MB", small, FILES, FILES * FILE_SIZE),
        ("one file of 200 MB", single, 1, LARGE),
    ):
        for way in ("up", "down"):
            archive, plain = readings[way, True], readings[way, False]
            rows += [Row(f"{what} {way}, archive", archive), Row(f"{what} {way}, plain", plain)]
            notes += [_speed(f"{what} {way}", archive, plain, count, size)]
            if count > 1:
                rows.append(Row(f"{what} {way}: archive per plain", archive.per(plain), target=FACTOR))
    return Suite(rows, notes)


def _measured(client: OpenAI, source: Path, target: Path) -> dict[tuple[str, bool], Reading]:
    samples: defaultdict[tuple[str, bool], list[float]] = defaultdict(list)
    for archives in (True, False) * TIMES:
        config = ContainerConfig(archives=archives)
        filled = ContainerFilesystem(client=client, container_config=config, local_root=source)
        samples["up", archives].append(_seconds(filled.ensure_container))
        # Another filesystem on the same container: it knows nothing yet, so that everything has to come.
        fresh = ContainerConfig(archives=archives, container_id=filled.container_id)
        files = ContainerFilesystem(client=client, container_config=fresh)
        with tempfile.TemporaryDirectory(dir=target.parent) as dest:
            samples["down", archives].append(_seconds(lambda files=files, dest=dest: files.download_all(Path(dest))))
            came = sum(path.stat().st_size for path in Path(dest).rglob("*") if path.is_file())
        if came != sum(path.stat().st_size for path in source.iterdir()):
            raise RuntimeError("not everything came back")
        files.cleanup()
        filled.cleanup()
    return {key: Reading.of(values) for key, values in samples.items()}


def _seconds(action: Callable[[], object]) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def _speed(what: str, archive: Reading, plain: Reading, count: int, size: int) -> str:
    def told(reading: Reading) -> str:
        files = f"{count / reading.p50:,.0f} files/s, " if count > 1 else ""
        return f"{files}{size / reading.p50 / 1e6:,.0f} MB/s"

    return f"{what}: {told(archive)} by archive; {told(plain)} one by one"


def _fill(directory: Path, count: int, size: int) -> None:
    directory.mkdir()
    for number in range(count):
        with (directory / f"file{number:05}.bin").open("wb") as file:
            for start in range(0, size, 1 << 20):
                file.write(os.urandom(min(1 << 20, size - start)))


@contextlib.contextmanager
def _server(place: Path) -> Iterator[OpenAI]:
    place.mkdir()
    (place / "script.yaml").write_text(json.dumps({"answers": [{"reply": [{"text": "x"}]}]}), encoding="utf-8")
    config = {"models": {"m": {"kind": "scripted", "script": "script.yaml"}}, "log": {"level": "error"}}
    (place / "antwort.yaml").write_text(json.dumps(config), encoding="utf-8")
    command = [sys.executable, "-m", "antwort", "serve", "--config", "antwort.yaml", "--port", "0"]
    with subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None  # noqa: S101 - it is a pipe
            url = process.stdout.readline().split()[1]
            with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
                container = client.containers.create(name="warm")
                client.containers.files.create(container.id, file=("a", b"a"))
                client.containers.delete(container.id)
                yield client
        finally:
            process.terminate()
            process.communicate()
