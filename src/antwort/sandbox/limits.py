"""Resource limits of a container, and the memory tiers. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .errors import Refused

GIB: Final = 1 << 30

TIERS: Final = {"1g": GIB, "4g": 4 * GIB, "16g": 16 * GIB, "64g": 64 * GIB}
"""Memory tiers by their names in the Containers API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLimits:
    """Limits of one container. Files count as memory, too: every writable directory is a tmpfs."""

    memory_bytes: int = GIB
    processes: int = 128
    """Processes and threads together."""
    cpus: float = 2.0
    disk_bytes: int = GIB // 2
    """Size of each of `/mnt/data`, `/tmp` and `/dev/shm`."""
    disk_files: int = 100_000
    output_bytes: int = 1 << 20
    """Of each of stdout and stderr, per call; longer output is truncated to head and tail."""


def tier(name: str, *, host_bytes: int) -> ContainerLimits:
    """The limits of a memory tier, or `Refused` if it needs more memory than the host has."""
    memory = TIERS.get(name)
    if memory is None:
        raise Refused(f"unknown memory tier {name!r}; valid tiers: {', '.join(TIERS)}")
    if memory > host_bytes:
        raise Refused(f"memory tier {name} needs more than the host's {host_bytes / GIB:.1f} GiB; choose a smaller one")
    return ContainerLimits(memory_bytes=memory, disk_bytes=memory // 2)
