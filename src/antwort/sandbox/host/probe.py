"""What this host gives: which walls can be built here, and what each is for."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from antwort.sandbox.errors import CannotStart, WeakHost
from antwort.sandbox.host import bubblewrap, cgroups
from antwort.sandbox.jail import landlock, syscalls

WALLS: Final = frozenset({"namespaces", "landlock", "seccomp"})
"""What must be there, or be waived by name."""

MEANING: Final = {
    "namespaces": "own files, processes, network and users: sees and reaches nobody else",
    "landlock": "a second wall around files, and what /proc would tell about the host",
    "seccomp": "the parts of the kernel that escapes begin with cannot be called",
    "cgroups": "memory, processes and processor time are counted exactly by the kernel",
}

_WITHOUT_GROUPS: Final = (
    "Resource limits and a watchdog instead: processor time is not shared out, and the kernel's own memory "
    "(page tables, pipes, epoll) is bounded per process but not counted"
)

UIDS: Final = range(0x70000000, 0x70010000)
"""Users that exist nowhere, one per zygote when we are root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What was found."""

    walls: frozenset[str]
    landlock_abi: int
    groups: cgroups.Groups | None
    root: bool
    memory_bytes: int
    """Of the machine, or of the control group that the server was put into."""
    why_no_namespaces: str | None = None
    why_no_groups: str = "only Linux has them"

    @property
    def missing(self) -> frozenset[str]:
        return WALLS - self.walls

    def require(self, waived: frozenset[str]) -> None:
        """Go on only if every missing wall was waived by name."""
        if unwaived := self.missing - waived:
            raise WeakHost(unwaived)
        if self.root and "namespaces" not in self.walls:
            message = "without namespaces code would run as root, since the server does: start it as an ordinary user"
            raise CannotStart(message)

    def claimed(self) -> Host:
        """The same, with control groups made ready for use, or without where that has become impossible."""
        if self.groups is None:
            return self
        try:
            self.groups.claim()
        except cgroups.NoGroups as error:
            return replace(self, groups=None, why_no_groups=str(error))
        return self

    def lines(self) -> list[tuple[str, str, str]]:
        """Name, state and meaning of each protection, for people."""
        kernel = f"yes, ABI {self.landlock_abi}" if self.landlock_abi else "no"
        groups = f"yes, {self.groups.kind}" if self.groups else f"no: {self.why_no_groups}. {_WITHOUT_GROUPS}"
        states = {
            "namespaces": "yes" if "namespaces" in self.walls else f"no: {self.why_no_namespaces}",
            "landlock": kernel,
            "seccomp": "yes" if "seccomp" in self.walls else "no",
            "cgroups": groups,
        }
        return [(name, states[name], meaning) for name, meaning in MEANING.items()]

    def summary(self) -> str:
        return "; ".join(f"{name}: {state}" for name, state, _ in self.lines())


def probe(top: int | None = None) -> Host:
    """Try, rather than believe configuration files; nothing is changed by it.

    `top` is a parent that this process lives and dies with, whose control group may then be divided as our own.
    """
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    walls: set[str] = set()
    why: str | None = "only Linux has them"
    abi = 0
    groups: cgroups.Groups | None = None
    why_no_groups = "only Linux has them"
    if sys.platform == "linux":
        why = _why_no_namespaces(UIDS[-1] if root else None)
        abi = landlock.abi()
        if why is None:
            walls.add("namespaces")
        if abi:
            walls.add("landlock")
        if _has_seccomp():
            walls.add("seccomp")
        try:
            groups = cgroups.here(top=top)
        except cgroups.NoGroups as error:
            why_no_groups = str(error)
    return Host(
        walls=frozenset(walls),
        landlock_abi=abi,
        groups=groups,
        root=root,
        memory_bytes=_memory_bytes(),
        why_no_namespaces=why,
        why_no_groups=why_no_groups,
    )


def _memory_bytes() -> int:
    """What the server and all its containers can ever have together."""
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(installed, cgroups.memory_limit() or installed)


def _why_no_namespaces(uid: int | None) -> str | None:
    """Build the walls around a program that does nothing; None if that worked."""
    try:
        launch = bubblewrap.probe(uid)
    except CannotStart as error:
        return str(error)
    try:
        done = subprocess.run(
            launch.argv, pass_fds=launch.descriptors, env={}, capture_output=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        launch.close()
    if done.returncode == 0:
        return None
    return done.stderr.decode(errors="replace").strip().splitlines()[-1] if done.stderr else "bubblewrap failed"


def _has_seccomp() -> bool:
    try:
        syscalls.machine()
    except syscalls.UnknownMachine:
        return False
    status = Path("/proc/self/status")
    return status.exists() and "Seccomp:" in status.read_text()
