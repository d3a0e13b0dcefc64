"""Cgroups v1 and v2: memory, process and CPU limits of containers, enforced by the kernel.

Without v1, hosts that have only v1 (older kernels and container runtimes, as root) fall back to `rlimits` and the
`watchdog`: CPU time is not limited there, and kernel memory is not counted. v2 is used in a delegated subtree (systemd,
container runtimes). Hosts with neither use the fallback.

`detect` changes nothing. Only `claim` moves processes, and only out of a cgroup that was delegated to the server and
has no other processes in it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Final, Protocol

from antwort.sandbox.host.process import descendants
from antwort.sandbox.limits import ContainerLimits

ROOT: Final = Path("/sys/fs/cgroup")
PREFIX: Final = "antwort-"
LEAF: Final = f"{PREFIX}server"
"""The server's own cgroup under v2, a sibling of those of its containers."""
_CPU_PERIOD_US: Final = 100_000
_INIT_PROCESSES: Final = 1
"""Init is not counted against the limit of the code."""
_MAX_CLAIM_ROUNDS: Final = 10
_DELEGATE_HINT: Final = "run the server as a service of its own with Delegate=yes"

LimitFiles = Callable[[ContainerLimits], list[dict[str, int | str]]]


class CgroupsUnavailable(Exception):
    """Cgroups cannot be used on this host; the message says why."""


class Cgroup(Protocol):
    """The cgroup of one container."""

    def add(self, pids: list[int]) -> None:
        """Move processes into it; their children are born in it."""
        ...

    def limit(self, limits: ContainerLimits) -> None: ...

    def out_of_memory(self) -> bool:
        """The OOM killer has killed a process in it."""
        ...

    def release(self) -> None: ...


class CgroupManager(Protocol):
    """Creates cgroups on this host."""

    kind: str

    @property
    def must_move(self) -> bool:
        """Whether `claim` would have to move processes."""
        ...

    def claim(self) -> None:
        """Prepare for `create`, or `CgroupsUnavailable`."""
        ...

    def create(self, pids: list[int]) -> Cgroup:
        """A new cgroup with these processes in it, without limits."""
        ...

    def sweep(self) -> None:
        """Remove cgroups left behind by killed servers."""
        ...


def detect(root: Path = ROOT, *, top_pid: int | None = None) -> CgroupManager:
    """The cgroups that this process may use, or `CgroupsUnavailable`.

    The descendants of `top_pid` count as the server's own: the parent with `--with-parent`, else the server.
    """
    if (root / "cgroup.controllers").exists():
        return CgroupV2.detect(root, top_pid=top_pid or os.getpid())
    return CgroupV1.detect(root)


def memory_limit(root: Path = ROOT, own: Path = Path("/proc/self/cgroup")) -> int | None:
    """The lowest memory limit of the server's cgroup and those above it; None if there is no limit.

    The root is read, too: in a container runtime's cgroup namespace it is often the server's own cgroup.
    """
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found: list[int] = []
    for number, controllers, path in (line.split(":", 2) for line in lines):
        if number == "0":
            top, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        cgroup = top / path.strip("/")
        above = [cgroup, *(parent for parent in cgroup.parents if parent.is_relative_to(top))]
        found += [int(word) for directory in above for word in _words(directory / name) if word.isdecimal()]
    return min(found, default=None)


class CgroupV1:
    """Version 1: one hierarchy per controller; only root can write to it."""

    kind = "v1"
    must_move = False
    _controllers = ("memory", "pids", "cpu")

    def __init__(self, root: Path) -> None:
        self._root = root

    @classmethod
    def detect(cls, root: Path) -> CgroupV1:
        missing = [name for name in cls._controllers if not (root / name / "cgroup.procs").exists()]
        if missing:
            raise CgroupsUnavailable(f"this host has no cgroup controllers for {', '.join(missing)}")
        # Often mounted read-only inside a container, which only an attempt shows.
        if not all(_can_create(root / name) for name in cls._controllers):
            raise CgroupsUnavailable("this host has cgroups v1, which only root can use")
        return cls(root)

    def claim(self) -> None:
        """Nothing to do: a v1 cgroup may have both processes and child cgroups."""

    def create(self, pids: list[int]) -> Cgroup:
        name = _new_name()
        directories = [self._root / controller / name for controller in self._controllers]
        try:
            for directory in directories:
                directory.mkdir()
                _attach(directory, pids)
        except OSError:
            for directory in directories:
                _undo_create(directory, directory.parent)
            raise
        return _CgroupDirectories(directories, directories[0] / "memory.oom_control", _v1_files)

    def sweep(self) -> None:
        for controller in self._controllers:
            _sweep(self._root / controller)


class CgroupV2:
    """Version 2: one hierarchy; usable where systemd or a container runtime delegated a subtree."""

    kind = "v2"
    required: ClassVar = frozenset({"memory", "pids"})
    optional: ClassVar = frozenset({"cpu"})
    """Not every system delegates it to ordinary users."""

    def __init__(self, root: Path, base: Path, top_pid: int) -> None:
        self._root = root
        self._base = base
        self._top_pid = top_pid

    @classmethod
    def detect(cls, root: Path, *, top_pid: int) -> CgroupV2:
        own = _own_cgroup(root)
        # Already in a leaf of the delegated cgroup: by an earlier claim, or by systemd's DelegateSubgroup.
        in_leaf = own != root and (own.name == LEAF or _is_delegated(own.parent))
        base = own.parent if in_leaf else own
        cls._check_delegated(base, own, root)
        manager = cls(root, base, top_pid)
        manager._check_no_foreign_processes()
        return manager

    @classmethod
    def _check_delegated(cls, base: Path, own: Path, root: Path) -> None:
        if not cls.required <= _words(base / "cgroup.controllers"):
            required = " and ".join(sorted(cls.required))
            raise CgroupsUnavailable(f"{required} are not enabled in the server's cgroup; {_DELEGATE_HINT}")
        files = (base / name for name in ("", "cgroup.procs", "cgroup.subtree_control"))
        if not all(os.access(file, os.W_OK) for file in files):
            raise CgroupsUnavailable(f"the server's cgroup is not writable; {_DELEGATE_HINT}")
        # Root may write anywhere, so for root writability does not prove delegation. What does is systemd's xattr, or
        # being the root of a cgroup namespace (the root of the host's hierarchy has no cgroup.type).
        is_namespace_root = own == root and (base / "cgroup.type").exists()
        if os.geteuid() == 0 and not (is_namespace_root or base != own or _is_delegated(base)):
            raise CgroupsUnavailable(f"the server's cgroup was not delegated to it; {_DELEGATE_HINT}")

    @property
    def must_move(self) -> bool:
        return bool(self._members())

    def claim(self) -> None:
        """A v2 cgroup with processes cannot have child cgroups with limits: move the server into a leaf first."""
        try:
            for _ in range(_MAX_CLAIM_ROUNDS):  # a process may fork meanwhile
                self._check_no_foreign_processes()
                members = self._members()
                if not members:
                    break
                (self._base / LEAF).mkdir(exist_ok=True)
                _attach(self._base / LEAF, members)
            wanted = self.required | (self.optional & _words(self._base / "cgroup.controllers"))
            if missing := wanted - _words(self._base / "cgroup.subtree_control"):
                _write(self._base / "cgroup.subtree_control", " ".join(f"+{name}" for name in sorted(missing)))
        except OSError as error:
            raise CgroupsUnavailable(f"the server's cgroup could not be divided: {error.strerror}") from error

    def create(self, pids: list[int]) -> Cgroup:
        directory = self._base / _new_name()
        directory.mkdir()
        try:
            _check_controllers(directory, self.required)
            _attach(directory, pids)
        except OSError:
            _undo_create(directory, _own_cgroup(self._root))
            raise
        return _CgroupDirectories([directory], directory / "memory.events", _v2_files)

    def sweep(self) -> None:
        _sweep(self._base)

    def _check_no_foreign_processes(self) -> None:
        if foreign := set(self._members()) - set(descendants(self._top_pid)):
            raise CgroupsUnavailable(f"the server's cgroup has {len(foreign)} other processes in it; {_DELEGATE_HINT}")

    def _members(self) -> list[int]:
        return [int(pid) for pid in _words(self._base / "cgroup.procs")]


class _CgroupDirectories:
    """A container's cgroup: one directory in v2, one per controller in v1."""

    def __init__(self, directories: list[Path], events: Path, files: LimitFiles) -> None:
        self._directories = directories
        self._events = events
        self._files = files

    def add(self, pids: list[int]) -> None:
        for directory in self._directories:
            _attach(directory, pids)

    def limit(self, limits: ContainerLimits) -> None:
        for directory, files in zip(self._directories, self._files(limits), strict=True):
            for name, value in files.items():
                try:
                    _write(directory / name, str(value))
                except FileNotFoundError:
                    # Swap accounting and the cpu controller are optional in the kernel; the rest is required.
                    if name not in _OPTIONAL_FILES:
                        raise

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


_OPTIONAL_FILES: Final = (
    "memory.memsw.limit_in_bytes", "memory.swap.max", "memory.oom.group", "cpu.cfs_period_us", "cpu.cfs_quota_us",
    "cpu.max",
)  # fmt: skip


def _v1_files(limits: ContainerLimits) -> list[dict[str, int | str]]:
    # Memory before memory and swap: the second may not be lower than the first.
    memory = {"memory.limit_in_bytes": limits.memory_bytes, "memory.memsw.limit_in_bytes": limits.memory_bytes}
    quota = {"cpu.cfs_period_us": _CPU_PERIOD_US, "cpu.cfs_quota_us": int(limits.cpus * _CPU_PERIOD_US)}
    return [{**memory}, {"pids.max": limits.processes + _INIT_PROCESSES}, {**quota}]


def _v2_files(limits: ContainerLimits) -> list[dict[str, int | str]]:
    memory = {"memory.max": limits.memory_bytes, "memory.swap.max": 0, "memory.oom.group": 1}
    cpu = f"{int(limits.cpus * _CPU_PERIOD_US)} {_CPU_PERIOD_US}"
    return [{**memory, "pids.max": limits.processes + _INIT_PROCESSES, "cpu.max": cpu}]


# -- the kernel's files ---------------------------------------------------------------------------------------------


def _own_cgroup(root: Path) -> Path:
    """The server's cgroup in the v2 hierarchy, as seen in its cgroup namespace."""
    lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    return root / own.strip("/")


def _is_delegated(cgroup: Path) -> bool:
    """Whether systemd marked this cgroup as delegated; ordinary users can read only one of the two xattrs."""
    for name in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(cgroup, name) == b"1":
                return True
    return False


def _words(file: Path) -> frozenset[str]:
    try:
        return frozenset(file.read_text(encoding="ascii").split())
    except OSError:
        return frozenset()


def _write(file: Path, text: str) -> None:
    """Write without O_CREAT: with it, the kernel reports a missing file as a permission error."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _new_name() -> str:
    return f"{PREFIX}{os.getpid()}-{secrets.token_hex(6)}"


def _attach(directory: Path, pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            _write(directory / "cgroup.procs", str(pid))


def _check_controllers(directory: Path, controllers: frozenset[str]) -> None:
    if not controllers <= _words(directory / "cgroup.controllers"):
        raise OSError("controllers are not enabled: the parent cgroup was not claimed")


def _undo_create(directory: Path, parent: Path) -> None:
    """Undo a failed creation: move its processes back to the parent, then remove it."""
    with contextlib.suppress(OSError):
        for pid in _words(directory / "cgroup.procs"):
            _write(parent / "cgroup.procs", pid)
        _remove(directory)


def _can_create(directory: Path) -> bool:
    trial = directory / _new_name()
    try:
        trial.mkdir()
        trial.rmdir()
    except OSError:
        return False
    return True


def _remove(directory: Path) -> None:
    """Retry for a moment: the kernel refuses while dying processes are still counted."""
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
