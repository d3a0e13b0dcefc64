"""Ends containers over their memory where the kernel does not count it for us, and those half-killed where it does.

Without control groups nothing but this limits a container's memory as a whole, so it looks often at those that run
something, and seldom at the rest. A process can take a lot between two looks; `RLIMIT_DATA` inside bounds that, and
the system-call filter refuses memory that belongs to no process. Sockets are counted here in either case.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from antwort.sandbox.container.container import Container
from antwort.sandbox.errors import SandboxError
from antwort.sandbox.host.process import descendants

TICK_SECONDS: Final = 0.1
_IDLE_TICKS: Final = 5
MOST_SOCKETS: Final = 1024
"""Their buffers are the kernel's memory, up to some 200 KiB each, and no group counts those of TCP."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


async def watch(containers: Callable[[], Iterable[Container]], *, counted: bool) -> None:
    """Look at them for ever. `counted` says that control groups limit memory."""
    tick = 0
    while True:
        await asyncio.sleep(TICK_SECONDS)
        tick += 1
        watched = [c for c in containers() if c.alive and (c.busy or tick % _IDLE_TICKS == 0)]
        if not watched:
            continue
        for container, reason in await asyncio.to_thread(_over, watched, counted=counted):
            container.condemn(reason)


def _over(containers: list[Container], *, counted: bool) -> list[tuple[Container, str]]:
    over: list[tuple[Container, str]] = []
    for container in containers:
        try:
            if container.starved if counted else _takes_too_much(container):
                over.append((container, "oom"))
            elif container.walled and _sockets(container) > MOST_SOCKETS:
                over.append((container, f"it had more than {MOST_SOCKETS} sockets open"))
        except (SandboxError, OSError, IndexError, ValueError):
            continue  # it ended meanwhile; the others are still to be looked at
    return over


def _sockets(container: Container) -> int:
    """How many its network namespace holds, of every kind, also those that no descriptor shows."""
    first = Path(f"/proc/{container.pids()[0]}/net/sockstat").read_text().partition("\n")[0]
    return int(first.rpartition(" ")[2])


def _takes_too_much(container: Container) -> bool:
    pids = container.pids()
    limit = container.limits.memory_bytes - (container.files.usage() if container.walled else 0)
    family = descendants(pids[0]) if pids else []
    # The sum counts shared pages once per process: too much, but cheap. Only if that is over, ask for the truth.
    return sum(map(_rough, family)) > limit and sum(map(_exact, family)) > limit


def _rough(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return int(fields[1]) * _PAGE


def _exact(pid: int) -> int:
    """Its share of memory, shared pages divided among those that share them; files of the stack left out."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0  # init, which hides itself and holds nothing
    wanted = ("Pss_Anon:", "Pss_Shmem:")
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(wanted))
