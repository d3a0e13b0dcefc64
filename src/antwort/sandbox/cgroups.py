"""Control groups: memory, processes and processor time counted by the kernel, where the host lets us.

Three kinds of host: version 2 with a delegated subtree (systemd, Kubernetes), version 1 as root, and neither. In the
last, `rlimits` inside and the `watchdog` outside take over.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from .limits import Limits

ROOT: Final = Path("/sys/fs/cgroup")
PREFIX: Final = "antwort-"
_PERIOD: Final = 100_000
_OURS: Final = 1
"""Init is ours, and not counted against the code."""

Files = Callable[[Limits], list[dict[str, int | str]]]


class Ward(Protocol):
    """One container's group."""

    def limit(self, limits: Limits) -> None: ...

    def out_of_memory(self) -> bool:
        """The kernel ended a process of it for want of memory."""
        ...

    def release(self) -> None: ...


class Groups(Protocol):
    """A way to make groups on this host."""

    kind: str

    def ward(self, pids: list[int]) -> Ward:
        """A new group with these processes in it, not limited yet."""
        ...

    def sweep(self) -> None:
        """Remove groups that a server left behind when it was killed."""
        ...


def here(root: Path = ROOT) -> Groups | None:
    """The best that this process may use, or None."""
    return Version2.here(root) or Version1.here(root)


class Version1:
    """One directory per controller; only root can write there."""

    kind = "v1"
    _controllers = ("memory", "pids", "cpu")

    def __init__(self, root: Path) -> None:
        self._root = root

    @classmethod
    def here(cls, root: Path) -> Version1 | None:
        usable = all(os.access(root / name / "cgroup.procs", os.W_OK) for name in cls._controllers)
        # Inside a container these are often mounted read-only, which only an attempt shows.
        return cls(root) if usable and _can_make(root / "memory") else None

    def ward(self, pids: list[int]) -> Ward:
        name = _new_name()
        directories = [self._root / controller / name for controller in self._controllers]
        try:
            for directory in directories:
                directory.mkdir()
                _attach(directory, pids)
        except OSError:
            for directory in directories:
                _give_back(directory)
            raise
        return _Directories(directories, directories[0] / "memory.oom_control", _version1_files)

    def sweep(self) -> None:
        for controller in self._controllers:
            _sweep(self._root / controller)


class Version2:
    """One tree; ours where systemd or the container runtime delegated it."""

    kind = "v2"

    def __init__(self, base: Path) -> None:
        self._base = base

    @classmethod
    def here(cls, root: Path) -> Version2 | None:
        if not (root / "cgroup.controllers").exists():
            return None
        own = next((line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line[:3] == "0::"), "/")
        base = root / own.strip("/")
        controllers = (
            (base / "cgroup.controllers").read_text().split() if (base / "cgroup.controllers").exists() else []
        )
        if not {"memory", "pids"} <= set(controllers) or not os.access(base / "cgroup.subtree_control", os.W_OK):
            return None
        return cls(base) if cls._make_room(base, controllers) else None

    @staticmethod
    def _make_room(base: Path, controllers: list[str]) -> bool:
        """A group with processes in it cannot have groups with limits below: move ourselves into a leaf first."""
        leaf = base / f"{PREFIX}server"
        try:
            leaf.mkdir(exist_ok=True)
            for pid in (base / "cgroup.procs").read_text().split():
                (leaf / "cgroup.procs").write_text(pid)
            wanted = " ".join(f"+{name}" for name in ("memory", "pids", "cpu") if name in controllers)
            (base / "cgroup.subtree_control").write_text(wanted)
        except OSError:
            return False
        return True

    def ward(self, pids: list[int]) -> Ward:
        directory = self._base / _new_name()
        directory.mkdir()
        try:
            _attach(directory, pids)
        except OSError:
            _give_back(directory)
            raise
        return _Directories([directory], directory / "memory.events", _version2_files)

    def sweep(self) -> None:
        _sweep(self._base)


class _Directories:
    """A container's groups, by their directories."""

    def __init__(self, directories: list[Path], events: Path, files: Files) -> None:
        self._directories = directories
        self._events = events
        self._files = files

    def limit(self, limits: Limits) -> None:
        for directory, files in zip(self._directories, self._files(limits), strict=True):
            for name, value in files.items():
                # Swap accounting and the processor controller are not on every kernel.
                with contextlib.suppress(FileNotFoundError):
                    (directory / name).write_text(str(value))

    def out_of_memory(self) -> bool:
        with contextlib.suppress(OSError):
            for line in self._events.read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count) > 0
        return False

    def release(self) -> None:
        for directory in self._directories:
            _remove(directory)


def _new_name() -> str:
    return f"{PREFIX}{os.getpid()}-{secrets.token_hex(6)}"


def _version1_files(limits: Limits) -> list[dict[str, int | str]]:
    # Memory before memory and swap: the second may never be lower than the first.
    memory = {"memory.limit_in_bytes": limits.memory_bytes, "memory.memsw.limit_in_bytes": limits.memory_bytes}
    quota = {"cpu.cfs_period_us": _PERIOD, "cpu.cfs_quota_us": int(limits.cpus * _PERIOD)}
    return [{**memory}, {"pids.max": limits.processes + _OURS}, {**quota}]


def _version2_files(limits: Limits) -> list[dict[str, int | str]]:
    return [
        {
            "memory.max": limits.memory_bytes,
            "memory.swap.max": 0,
            "memory.oom.group": 1,
            "pids.max": limits.processes + _OURS,
            "cpu.max": f"{int(limits.cpus * _PERIOD)} {_PERIOD}",
        }
    ]


def _attach(directory: Path, pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            (directory / "cgroup.procs").write_text(str(pid))


def _give_back(directory: Path) -> None:
    """Undo a group whose making failed half-way: its processes go up, then it can be removed."""
    with contextlib.suppress(OSError):
        for pid in (directory / "cgroup.procs").read_text().split():
            (directory.parent / "cgroup.procs").write_text(pid)
        _remove(directory)


def _can_make(directory: Path) -> bool:
    trial = directory / _new_name()
    try:
        trial.mkdir()
        trial.rmdir()
    except OSError:
        return False
    return True


def _remove(directory: Path) -> None:
    """The kernel refuses while dying processes are still counted, which is over within a moment."""
    for _ in range(50):
        try:
            directory.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.002)
        else:
            return


def _sweep(parent: Path) -> None:
    for directory in parent.glob(f"{PREFIX}*-*"):
        owner = directory.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and not Path("/proc", owner).exists():
            _remove(directory)
