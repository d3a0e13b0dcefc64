"""Isolation probe: which protections (namespaces, Landlock, seccomp, cgroups) this host supports."""

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

REQUIRED_LAYERS: Final = frozenset({"namespaces", "landlock", "seccomp"})
"""Required, unless waived by name."""

LAYER_DESCRIPTIONS: Final = {
    "namespaces": "its own files, processes, network and users: no access to those of others",
    "landlock": "a second restriction of file access, and of what /proc reveals about the host",
    "seccomp": "the system calls that escapes start from are refused",
    "cgroups": "memory, processes and CPU time are limited exactly by the kernel",
}

_WITHOUT_CGROUPS: Final = (
    "Resource limits and a watchdog are used instead: CPU time is not limited, and kernel memory "
    "(page tables, pipes, epoll) is bounded per process but not counted"
)

UIDS: Final = range(0x70000000, 0x70010000)
"""Unused user ids, one per zygote when the server is root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The protections of a host."""

    layers: frozenset[str]
    landlock_abi: int
    cgroups: cgroups.CgroupManager | None
    root: bool
    memory_bytes: int
    """Of the machine, or the memory limit of the server's cgroup."""
    no_namespaces_reason: str | None = None
    no_cgroups_reason: str = "only Linux has them"

    @property
    def missing(self) -> frozenset[str]:
        return REQUIRED_LAYERS - self.layers

    def require(self, waived: frozenset[str]) -> None:
        """Raise `WeakHost` unless every missing layer was waived by name."""
        if unwaived := self.missing - waived:
            raise WeakHost(unwaived)
        if self.root and "namespaces" not in self.layers:
            message = "without namespaces the code would run as root, like the server: start it as an ordinary user"
            raise CannotStart(message)

    def claim_cgroups(self) -> Host:
        """The same with cgroups claimed, or without cgroups where claiming fails."""
        if self.cgroups is None:
            return self
        try:
            self.cgroups.claim()
        except cgroups.CgroupsUnavailable as error:
            return replace(self, cgroups=None, no_cgroups_reason=str(error))
        return self

    def lines(self) -> list[tuple[str, str, str]]:
        """Name, state and purpose of each protection, for display."""
        no_cgroups = f"no: {self.no_cgroups_reason}. {_WITHOUT_CGROUPS}"
        states = {
            "namespaces": "yes" if "namespaces" in self.layers else f"no: {self.no_namespaces_reason}",
            "landlock": f"yes, ABI {self.landlock_abi}" if self.landlock_abi else "no",
            "seccomp": "yes" if "seccomp" in self.layers else "no",
            "cgroups": f"yes, {self.cgroups.kind}" if self.cgroups else no_cgroups,
        }
        return [(name, states[name], meaning) for name, meaning in LAYER_DESCRIPTIONS.items()]

    def summary(self) -> str:
        return "; ".join(f"{name}: {state}" for name, state, _ in self.lines())


def probe(top_pid: int | None = None) -> Host:
    """Try each protection, without changing the host.

    `top_pid` is the parent with `--with-parent`, whose cgroup then counts as the server's own.
    """
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    layers: set[str] = set()
    no_namespaces_reason: str | None = "only Linux has them"
    abi = 0
    manager: cgroups.CgroupManager | None = None
    no_cgroups_reason = "only Linux has them"
    if sys.platform == "linux":
        no_namespaces_reason = _probe_namespaces(UIDS[-1] if root else None)
        abi = landlock.abi()
        if no_namespaces_reason is None:
            layers.add("namespaces")
        if abi:
            layers.add("landlock")
        if _has_seccomp():
            layers.add("seccomp")
        try:
            manager = cgroups.detect(top_pid=top_pid)
        except cgroups.CgroupsUnavailable as error:
            no_cgroups_reason = str(error)
    return Host(
        layers=frozenset(layers),
        landlock_abi=abi,
        cgroups=manager,
        root=root,
        memory_bytes=_memory_bytes(),
        no_namespaces_reason=no_namespaces_reason,
        no_cgroups_reason=no_cgroups_reason,
    )


def _memory_bytes() -> int:
    """Memory available to the server and all its containers together."""
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(installed, cgroups.memory_limit() or installed)


def _probe_namespaces(uid: int | None) -> str | None:
    """Run `true` in bubblewrap; returns why that failed, or None."""
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
