"""Resource limits (rlimits) per process, which also apply where the host has no cgroups."""

from __future__ import annotations

import resource
from typing import Final

MAX_OPEN_FILES: Final = 1024
_MAX_DESCRIPTOR: Final = 4000


def raise_nofile_limit() -> None:
    """In the zygote: raise the soft limit on open files (1,024 on most hosts), up to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_DESCRIPTOR + 1 if hard == resource.RLIM_INFINITY else min(_MAX_DESCRIPTOR + 1, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def highest_descriptor() -> int:
    """A descriptor above the limit that `apply` sets, so that code that closes all descriptors does not close it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_DESCRIPTOR if soft == resource.RLIM_INFINITY else min(_MAX_DESCRIPTOR, soft - 1)


def apply(*, processes: int | None, file_bytes: int, data_bytes: int | None) -> None:
    """Limit this process and its descendants; hard limits, which can only be lowered.

    The kernel counts `processes` per user *and user namespace*, so the limit is the container's own; None without one.
    `data_bytes` is given only where no cgroup limits memory: it stops one process from outrunning the
    watchdog. It includes the preloaded stack, so the caller adds what the zygote already used.
    """
    limits = {
        "NOFILE": min(MAX_OPEN_FILES, highest_descriptor()),
        "FSIZE": file_bytes,  # a sparse file of a terabyte is free here, but not for what copies it
        "CORE": 0,  # no copies of memory on disk
        # Timers and queued signals are counted per user: without a limit one container could use them all.
        "SIGPENDING": 1024,
        "MSGQUEUE": 0,
        "MEMLOCK": 8 << 20,
        "RTPRIO": 0,
        "NICE": 0,
    }
    if processes is not None:
        limits["NPROC"] = processes
    if data_bytes is not None:
        limits["DATA"] = data_bytes
    for name, value in limits.items():
        which: int | None = getattr(resource, f"RLIMIT_{name}", None)
        if which is None:
            continue  # only Linux has all of them
        hard = resource.getrlimit(which)[1]
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (bound, bound))
