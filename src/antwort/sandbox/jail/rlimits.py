"""Resource limits per process: the floor that holds where the host has no control groups for us."""

from __future__ import annotations

import resource
from typing import Final

OPEN_FILES: Final = 1024
_HIGHEST: Final = 4000


def make_room() -> None:
    """In the zygote: lift the soft limit on open files (1,024 on most hosts) as far as the hard one lets us."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _HIGHEST + 1 if hard == resource.RLIM_INFINITY else min(_HIGHEST + 1, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def out_of_the_way() -> int:
    """A descriptor above every limit that `apply` sets, so that code which closes "all" of them does not meet it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _HIGHEST if soft == resource.RLIM_INFINITY else min(_HIGHEST, soft - 1)


def apply(*, processes: int, file_bytes: int, data_bytes: int | None) -> None:
    """Limit this process and all it starts; hard limits, so that they can only be lowered.

    `processes` is counted by the kernel per user *and user namespace*, so it holds for the container alone.
    `data_bytes` is given only where no control group limits memory: it stops one process from outrunning the
    watchdog. The preloaded stack is counted in it, so the caller adds what the zygote already had.
    """
    limits = {
        "NPROC": processes,
        "NOFILE": min(OPEN_FILES, out_of_the_way()),
        "FSIZE": file_bytes,  # a sparse file of a terabyte costs nothing, but breaks what copies it
        "CORE": 0,  # a core dump is a copy of memory where nobody expects it
        # Timers and queued signals: counted per user too, so without a limit here one container could take all.
        "SIGPENDING": 1024,
        "MSGQUEUE": 0,
        "MEMLOCK": 8 << 20,
        "RTPRIO": 0,
        "NICE": 0,
    }
    if data_bytes is not None:
        limits["DATA"] = data_bytes
    for name, value in limits.items():
        which: int | None = getattr(resource, f"RLIMIT_{name}", None)
        if which is None:
            continue  # only Linux has all of them
        hard = resource.getrlimit(which)[1]
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (bound, bound))
