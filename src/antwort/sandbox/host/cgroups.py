"""Control groups: memory, processes and processor time counted by the kernel, where the host lets us.

Three kinds of host: version 2 with a delegated subtree (systemd, a container runtime), version 1 as root, and neither.
In the last, `rlimits` inside and the `watchdog` outside take over.

To find out changes nothing. Only `claim` moves anybody, and only out of a group that is ours: handed over to us, and
with nobody in it but us.
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
"""Where the server itself lives under version 2, beside its containers."""
_PERIOD: Final = 100_000
_OURS: Final = 1
"""Init is ours, and not counted against the code."""
_ROUNDS: Final = 10
_HOW: Final = "run the server as a service of its own with Delegate=yes"

Files = Callable[[ContainerLimits], list[dict[str, int | str]]]


class NoGroups(Exception):
    """Control groups cannot be used here; the message says why, for people."""


class Cgroup(Protocol):
    """One container's group."""

    def limit(self, limits: ContainerLimits) -> None: ...

    def out_of_memory(self) -> bool:
        """The kernel ended a process of it for want of memory."""
        ...

    def release(self) -> None: ...


class Groups(Protocol):
    """A way to make groups on this host."""

    kind: str

    @property
    def moves(self) -> bool:
        """Whether `claim` would have to move somebody."""
        ...

    def claim(self) -> None:
        """Make it ready for use, or `NoGroups` where that has become impossible."""
        ...

    def ward(self, pids: list[int]) -> Cgroup:
        """A new group with these processes in it, not limited yet."""
        ...

    def sweep(self) -> None:
        """Remove groups that a server left behind when it was killed."""
        ...


def here(root: Path = ROOT, *, top: int | None = None) -> Groups:
    """The best that this process may use, or `NoGroups`.

    `top` is the process whose whole family counts as us: a parent that we live and die with, else ourselves.
    """
    if (root / "cgroup.controllers").exists():
        return Version2.here(root, top=top or os.getpid())
    return Version1.here(root)


def memory_limit(root: Path = ROOT, own: Path = Path("/proc/self/cgroup")) -> int | None:
    """The least memory that our own group, or one above it, may have; None where none of them says.

    The top is looked at too: a container runtime often shows us our own group there, under a name that it hides.
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
        group = top / path.strip("/")
        above = [group, *(parent for parent in group.parents if parent.is_relative_to(top))]
        found += [int(word) for place in above for word in _words(place / name) if word.isdecimal()]
    return min(found, default=None)


class Version1:
    """One directory per controller; only root can write there."""

    kind = "v1"
    moves = False
    _controllers = ("memory", "pids", "cpu")

    def __init__(self, root: Path) -> None:
        self._root = root

    @classmethod
    def here(cls, root: Path) -> Version1:
        missing = [name for name in cls._controllers if not (root / name / "cgroup.procs").exists()]
        if missing:
            raise NoGroups(f"this host has none for {', '.join(missing)}")
        # Inside a container these are often mounted read-only, which only an attempt shows.
        if not all(_can_make(root / name) for name in cls._controllers):
            raise NoGroups("this host has version 1, which only root can use")
        return cls(root)

    def claim(self) -> None:
        """Nobody is in the way: a group may have processes and groups below it."""

    def ward(self, pids: list[int]) -> Cgroup:
        name = _new_name()
        directories = [self._root / controller / name for controller in self._controllers]
        try:
            for directory in directories:
                directory.mkdir()
                _attach(directory, pids)
        except OSError:
            for directory in directories:
                _give_back(directory, directory.parent)
            raise
        return _Directories(directories, directories[0] / "memory.oom_control", _version1_files)

    def sweep(self) -> None:
        for controller in self._controllers:
            _sweep(self._root / controller)


class Version2:
    """One tree; ours where systemd or a container runtime handed a part of it over."""

    kind = "v2"
    needed: ClassVar = frozenset({"memory", "pids"})
    welcome: ClassVar = frozenset({"cpu"})
    """Not delegated to ordinary users by every system."""

    def __init__(self, root: Path, base: Path, top: int) -> None:
        self._root = root
        self._base = base
        self._top = top

    @classmethod
    def here(cls, root: Path, *, top: int) -> Version2:
        own = _own_group(root)
        # Already in a leaf of the group that was handed over: by an earlier claim, or by systemd's DelegateSubgroup.
        in_leaf = own != root and (own.name == LEAF or _marked(own.parent))
        base = own.parent if in_leaf else own
        cls._check(base, own, root)
        groups = cls(root, base, top)
        groups._check_company()
        return groups

    @classmethod
    def _check(cls, base: Path, own: Path, root: Path) -> None:
        if not cls.needed <= _words(base / "cgroup.controllers"):
            raise NoGroups(f"{' and '.join(sorted(cls.needed))} are not counted in our control group; {_HOW}")
        files = (base / name for name in ("", "cgroup.procs", "cgroup.subtree_control"))
        if not all(os.access(file, os.W_OK) for file in files):
            raise NoGroups(f"our control group is not ours to divide; {_HOW}")
        # Root may write anywhere, so for root that says nothing. What does is systemd's mark, and being the root of a
        # control-group namespace (the very root of the host's tree has no type).
        namespaced = own == root and (base / "cgroup.type").exists()
        if os.geteuid() == 0 and not (namespaced or base != own or _marked(base)):
            raise NoGroups(f"our control group was not handed over to us; {_HOW}")

    @property
    def moves(self) -> bool:
        return bool(self._members())

    def claim(self) -> None:
        """A group with processes in it cannot have groups with limits below: move ourselves into a leaf first."""
        try:
            for _ in range(_ROUNDS):  # one of us may fork meanwhile
                self._check_company()
                members = self._members()
                if not members:
                    break
                (self._base / LEAF).mkdir(exist_ok=True)
                _attach(self._base / LEAF, members)
            wanted = self.needed | (self.welcome & _words(self._base / "cgroup.controllers"))
            if missing := wanted - _words(self._base / "cgroup.subtree_control"):
                _write(self._base / "cgroup.subtree_control", " ".join(f"+{name}" for name in sorted(missing)))
        except OSError as error:
            raise NoGroups(f"our control group could not be divided: {error.strerror}") from error

    def ward(self, pids: list[int]) -> Cgroup:
        directory = self._base / _new_name()
        directory.mkdir()
        try:
            _check_counted(directory, self.needed)
            _attach(directory, pids)
        except OSError:
            _give_back(directory, _own_group(self._root))
            raise
        return _Directories([directory], directory / "memory.events", _version2_files)

    def sweep(self) -> None:
        _sweep(self._base)

    def _check_company(self) -> None:
        if strangers := set(self._members()) - set(descendants(self._top)):
            raise NoGroups(f"our control group has {len(strangers)} other processes in it; {_HOW}")

    def _members(self) -> list[int]:
        return [int(pid) for pid in _words(self._base / "cgroup.procs")]


class _Directories:
    """A container's groups, by their directories."""

    def __init__(self, directories: list[Path], events: Path, files: Files) -> None:
        self._directories = directories
        self._events = events
        self._files = files

    def limit(self, limits: ContainerLimits) -> None:
        for directory, files in zip(self._directories, self._files(limits), strict=True):
            for name, value in files.items():
                try:
                    _write(directory / name, str(value))
                except FileNotFoundError:
                    # Swap accounting and the processor controller are not on every kernel. The rest has to be.
                    if name not in _OPTIONAL:
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


_OPTIONAL: Final = frozenset(
    {
        "memory.memsw.limit_in_bytes",
        "memory.swap.max",
        "memory.oom.group",
        "cpu.cfs_period_us",
        "cpu.cfs_quota_us",
        "cpu.max",
    }
)


def _version1_files(limits: ContainerLimits) -> list[dict[str, int | str]]:
    # Memory before memory and swap: the second may never be lower than the first.
    memory = {"memory.limit_in_bytes": limits.memory_bytes, "memory.memsw.limit_in_bytes": limits.memory_bytes}
    quota = {"cpu.cfs_period_us": _PERIOD, "cpu.cfs_quota_us": int(limits.cpus * _PERIOD)}
    return [{**memory}, {"pids.max": limits.processes + _OURS}, {**quota}]


def _version2_files(limits: ContainerLimits) -> list[dict[str, int | str]]:
    return [
        {
            "memory.max": limits.memory_bytes,
            "memory.swap.max": 0,
            "memory.oom.group": 1,
            "pids.max": limits.processes + _OURS,
            "cpu.max": f"{int(limits.cpus * _PERIOD)} {_PERIOD}",
        }
    ]


# -- the kernel's files ---------------------------------------------------------------------------------------------


def _own_group(root: Path) -> Path:
    """Ours in the tree of version 2, as far as our namespace lets us see it."""
    lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    return root / own.strip("/")


def _marked(group: Path) -> bool:
    """Whether systemd says that it has handed this group over; ordinary users can read only one of the two marks."""
    for name in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(group, name) == b"1":
                return True
    return False


def _words(file: Path) -> frozenset[str]:
    try:
        return frozenset(file.read_text(encoding="ascii").split())
    except OSError:
        return frozenset()


def _write(file: Path, text: str) -> None:
    """Without making the file: asked to, the kernel complains of permissions and not of what is missing."""
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


def _check_counted(directory: Path, controllers: frozenset[str]) -> None:
    if not controllers <= _words(directory / "cgroup.controllers"):
        message = "nothing would be counted in it: the group above was not claimed"
        raise OSError(message)


def _give_back(directory: Path, home: Path) -> None:
    """Undo a group whose making failed half-way: its processes go home, then it can be removed."""
    with contextlib.suppress(OSError):
        for pid in _words(directory / "cgroup.procs"):
            _write(home / "cgroup.procs", pid)
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
