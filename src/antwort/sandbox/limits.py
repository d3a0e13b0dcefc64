"""What a container may use. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .errors import Refused

GIB: Final = 1 << 30

TIERS: Final = {"1g": GIB, "4g": 4 * GIB, "16g": 16 * GIB, "64g": 64 * GIB}
"""Memory tiers by the names that the Containers API uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLimits:
    """One container's share. Files count as memory too: every writable place in it is a tmpfs."""

    memory_bytes: int = GIB
    processes: int = 128
    """Processes and threads together, as the kernel counts them."""
    cpus: float = 2.0
    disk_bytes: int = GIB // 2
    """Each of `/mnt/data`, `/tmp` and `/dev/shm`."""
    disk_files: int = 100_000
    output_bytes: int = 1 << 20
    """Each of standard output and standard error, per call; past it head and tail are kept."""


def tier(name: str, *, host_bytes: int) -> ContainerLimits:
    """The limits of a memory tier, or `Refused` where this host could never hold it."""
    memory = TIERS.get(name)
    if memory is None:
        message = f"unknown memory tier {name!r}; there are {', '.join(TIERS)}"
        raise Refused(message)
    if memory > host_bytes:
        message = f"memory tier {name} needs more than this host's {host_bytes / GIB:.1f} GiB; choose a smaller one"
        raise Refused(message)
    return ContainerLimits(memory_bytes=memory, disk_bytes=memory // 2)
