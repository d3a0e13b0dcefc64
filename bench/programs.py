"""What people run instead of a sandbox server: `python -c`, plain and in bubblewrap, with files through its pipes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from readings import Reading

from antwort.sandbox.host import bubblewrap

_ROUNDS = 5
_MOST = 0.7
_FILES = {
    "large in": "import shutil, sys; shutil.copyfileobj(sys.stdin.buffer, open('large', 'wb'), 1 << 20)",
    "large out": "import shutil, sys; shutil.copyfileobj(open('large', 'rb'), sys.stdout.buffer, 1 << 20)",
    "small in": "import sys, tarfile; tarfile.open(fileobj=sys.stdin.buffer, mode='r|').extractall('.', filter='data')",
    "small out": "import sys, tarfile; tarfile.open(fileobj=sys.stdout.buffer, mode='w|').add('small')",
}


def _environment() -> dict[str, str]:
    """Bytecode is there already, and would be used."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def commands(code: str) -> dict[str, list[str]]:
    """How each of them runs this."""
    plain = [sys.executable, "-c", code]
    wrapped = [str(bubblewrap.find_bwrap()), "--unshare-all", "--dev-bind", "/", "/", "--", *plain]
    return {"python -c": plain, "bubblewrap python -c": wrapped}


def starts(code: str) -> dict[str, Reading | str]:
    """From nothing to the end of the code."""
    samples: dict[str, list[float]] = {}
    for rounds in range(_ROUNDS + 1):
        for name, argv in commands(code).items():
            begun = perf_counter()
            subprocess.run(argv, check=True, env=_environment(), stdout=subprocess.DEVNULL)
            if rounds:
                samples.setdefault(name, []).append(perf_counter() - begun)
    return {name: Reading.of(taken) for name, taken in samples.items()}


def files(large: bytes, small: bytes) -> dict[str, dict[str, Reading | str]]:
    """One large file, and the small ones in a tar: in on standard input, out on standard output. By direction."""
    sent = {"large in": large, "small in": small}
    read: dict[str, dict[str, Reading | str]] = {}
    for what, code in _FILES.items():
        for name, argv in commands(code).items():
            with _place(large, small) as place:
                samples = [_passed(argv, sent.get(what), place) for _ in range(3)]
            read.setdefault(what, {})[name] = Reading.of(samples)
    return read


@contextlib.contextmanager
def _place(large: bytes, small: bytes) -> Iterator[Path]:
    """A directory in which the files are already."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "large").write_bytes(large)
        _passed(commands(_FILES["small in"])["python -c"], small, place)
        yield place


def _passed(argv: list[str], sent: bytes | None, place: Path) -> float:
    begun = perf_counter()
    subprocess.run(argv, check=True, env=_environment(), cwd=place, input=sent, capture_output=True)
    return perf_counter() - begun


def at_once(code: str, count: int) -> dict[str, Reading | str]:
    """So many started together, until each has run the code; none ends before all have."""
    kept = commands(f"{code}\nimport sys; sys.stdout.flush(); sys.stdin.read()")
    _, each = _all_ready(kept["python -c"], 1)
    if reason := too_many(count, each):
        return dict.fromkeys(kept, reason)
    return {name: _all_ready(argv, count)[0] for name, argv in kept.items()}


def _all_ready(argv: list[str], count: int) -> tuple[Reading, float]:
    """How long that took, and the megabytes that the first of them holds alone."""
    with contextlib.ExitStack() as running:
        begun = perf_counter()
        started = [
            running.enter_context(
                subprocess.Popen(argv, env=_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
            for _ in range(count)
        ]
        if not all(process.stdout is not None and process.stdout.readline() for process in started):
            raise RuntimeError(f"not all of them ran: {argv}")
        took = perf_counter() - begun
        held = own_megabytes(started[0].pid)
    return Reading(took, took), held


def too_many(count: int, megabytes: float) -> str | None:
    """Why so many of that size are not started here, if that could take most of the memory there is."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) / 1024
    if count * megabytes < _MOST * free:
        return None
    return f"not tried: {count} need {count * megabytes / 1024:.0f} GB of memory, and {free / 1024:.0f} GB are free"


def own_megabytes(pid: int) -> float:
    """What it holds alone: private pages and page tables."""
    lines = f"{_text(pid, 'smaps_rollup')}{_text(pid, 'status')}".splitlines()
    wanted = ("Private_Clean:", "Private_Dirty:", "VmPTE:")
    return sum(int(line.split()[1]) for line in lines if line.startswith(wanted)) / 1024


def _text(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(encoding="ascii")
    except OSError:
        return ""  # an ordinary user cannot read init, which hides itself
