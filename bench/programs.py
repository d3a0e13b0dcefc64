"""Peers of the sandbox: `python -c`, plain and in bubblewrap, with files through pipes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from measurements import Measurement

from antwort.sandbox.host import bubblewrap

_ROUNDS = 5
_MAX_MEMORY_SHARE = 0.7
_FILES = {
    "large in": "import shutil, sys; shutil.copyfileobj(sys.stdin.buffer, open('large', 'wb'), 1 << 20)",
    "large out": "import shutil, sys; shutil.copyfileobj(open('large', 'rb'), sys.stdout.buffer, 1 << 20)",
    "small in": "import sys, tarfile; tarfile.open(fileobj=sys.stdin.buffer, mode='r|').extractall('.', filter='data')",
    "small out": "import sys, tarfile; tarfile.open(fileobj=sys.stdout.buffer, mode='w|').add('small')",
}


def _environment() -> dict[str, str]:
    """The environment with bytecode caching on."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def commands(code: str) -> dict[str, list[str]]:
    """The command line of each peer."""
    plain = [sys.executable, "-c", code]
    wrapped = [str(bubblewrap.find_bwrap()), "--unshare-all", "--dev-bind", "/", "/", "--", *plain]
    return {"python -c": plain, "bubblewrap python -c": wrapped}


def start_times(code: str) -> dict[str, Measurement | str]:
    """Time from process start to the end of the code."""
    samples: dict[str, list[float]] = {}
    for rounds in range(_ROUNDS + 1):
        for name, argv in commands(code).items():
            start_time = perf_counter()
            subprocess.run(argv, check=True, env=_environment(), stdout=subprocess.DEVNULL)
            if rounds:
                samples.setdefault(name, []).append(perf_counter() - start_time)
    return {name: Measurement.from_samples(taken) for name, taken in samples.items()}


def file_times(large: bytes, small: bytes) -> dict[str, dict[str, Measurement | str]]:
    """Transfer times of one large file and of small files in a tar, through stdin and stdout, by direction."""
    stdin = {"large in": large, "small in": small}
    read: dict[str, dict[str, Measurement | str]] = {}
    for what, code in _FILES.items():
        for name, argv in commands(code).items():
            with _folder_with_files(large, small) as folder:
                samples = [_run_seconds(argv, stdin.get(what), folder) for _ in range(3)]
            read.setdefault(what, {})[name] = Measurement.from_samples(samples)
    return read


@contextlib.contextmanager
def _folder_with_files(large: bytes, small: bytes) -> Iterator[Path]:
    """A directory that contains the files."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "large").write_bytes(large)
        _run_seconds(commands(_FILES["small in"])["python -c"], small, folder)
        yield folder


def _run_seconds(argv: list[str], stdin: bytes | None, folder: Path) -> float:
    start_time = perf_counter()
    subprocess.run(argv, check=True, env=_environment(), cwd=folder, input=stdin, capture_output=True)
    return perf_counter() - start_time


def concurrent_start_times(code: str, count: int) -> dict[str, Measurement | str]:
    """Time until `count` concurrent processes have all run the code; all stay alive until then."""
    kept = commands(f"{code}\nimport sys; sys.stdout.flush(); sys.stdin.read()")
    _, each = _all_ready(kept["python -c"], 1)
    if reason := reason_to_skip(count, each):
        return dict.fromkeys(kept, reason)
    return {name: _all_ready(argv, count)[0] for name, argv in kept.items()}


def _all_ready(argv: list[str], count: int) -> tuple[Measurement, float]:
    """The duration, and the private memory of the first process in MB."""
    with contextlib.ExitStack() as running:
        start_time = perf_counter()
        started = [
            running.enter_context(
                subprocess.Popen(argv, env=_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
            for _ in range(count)
        ]
        if not all(process.stdout is not None and process.stdout.readline() for process in started):
            raise RuntimeError(f"not all processes ran the code: {argv}")
        took = perf_counter() - start_time
        megabytes = own_megabytes(started[0].pid)
    return Measurement(took, took), megabytes


def reason_to_skip(count: int, megabytes: float) -> str | None:
    """The reason to skip the test, if it would take most of the free memory."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) / 1024
    if count * megabytes < _MAX_MEMORY_SHARE * free:
        return None
    return f"skipped: {count} processes need {count * megabytes / 1024:.0f} GB of memory, {free / 1024:.0f} GB are free"


def own_megabytes(pid: int) -> float:
    """Private memory of a process: private pages and page tables, in MB."""
    lines = f"{_text(pid, 'smaps_rollup')}{_text(pid, 'status')}".splitlines()
    wanted = ("Private_Clean:", "Private_Dirty:", "VmPTE:")
    return sum(int(line.split()[1]) for line in lines if line.startswith(wanted)) / 1024


def _text(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(encoding="ascii")
    except OSError:
        return ""  # an ordinary user cannot read the init process of a container
