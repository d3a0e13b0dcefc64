"""Watchdog: ends containers that exceed their memory, or their number of sockets or processes.

Without it, nothing limits a container's total memory on hosts without cgroups, and a container with cgroups of which
the OOM killer killed only some processes would go on; and TCP buffers, which no cgroup counts, would be unlimited.
Busy containers are checked on every tick, idle ones less often. Between two checks `RLIMIT_DATA` bounds each process,
and the seccomp filter refuses memory that belongs to no process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from antwort.sandbox.container.container import Container
from antwort.sandbox.errors import SandboxServerError
from antwort.sandbox.host.process import descendants

TICK_SECONDS: Final = 0.1
_IDLE_TICKS: Final = 5
MAX_SOCKETS: Final = 1024
"""Per container. Their buffers are kernel memory, about 200 KiB each, and cgroups do not count those of TCP."""
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


async def watch(containers: Callable[[], Iterable[Container]], *, has_cgroups: bool) -> None:
    """Check the containers for ever. `has_cgroups`: the kernel limits their memory."""
    tick = 0
    while True:
        await asyncio.sleep(TICK_SECONDS)
        tick += 1
        watched = [c for c in containers() if c.alive and (c.busy or tick % _IDLE_TICKS == 0)]
        if not watched:
            continue
        for container, reason in await asyncio.to_thread(_find_over_limit, watched, has_cgroups=has_cgroups):
            container.kill_nowait(reason)


def _find_over_limit(containers: list[Container], *, has_cgroups: bool) -> list[tuple[Container, str]]:
    found: list[tuple[Container, str]] = []
    for container in containers:
        try:
            if container.oom_killed if has_cgroups else _is_over_memory(container):
                found.append((container, "oom"))
            elif container.has_namespaces and _count_sockets(container) > MAX_SOCKETS:
                found.append((container, f"it had more than {MAX_SOCKETS} sockets open"))
            elif not container.has_namespaces and _count_processes(container) > container.limits.processes:
                found.append((container, f"it had more than {container.limits.processes} processes"))
        except (SandboxServerError, OSError, IndexError, ValueError):
            continue  # it ended meanwhile; check the others
    return found


def _count_sockets(container: Container) -> int:
    """All sockets of its network namespace, also those without a descriptor."""
    first = Path(f"/proc/{container.pids()[0]}/net/sockstat").read_text().partition("\n")[0]
    return int(first.rpartition(" ")[2])


def _count_processes(container: Container) -> int:
    """Where no namespace bounds them: its descendants, without those that left the process tree."""
    pids = container.pids()
    return len(descendants(pids[0])) if pids else 0


def _is_over_memory(container: Container) -> bool:
    pids = container.pids()
    limit = container.limits.memory_bytes - (container.files.usage() if container.has_namespaces else 0)
    processes = descendants(pids[0]) if pids else []
    # RSS counts shared pages once per process: too much, but cheap. PSS is exact and read only if RSS is over.
    return sum(map(_rss_bytes, processes)) > limit and sum(map(_pss_bytes, processes)) > limit


def _rss_bytes(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return int(fields[1]) * _PAGE_BYTES


def _pss_bytes(pid: int) -> int:
    """Proportional set size (shared pages divided among their users), without file-backed pages."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0  # init, which is not dumpable and has almost no memory of its own
    fields = ("Pss_Anon:", "Pss_Shmem:")
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(fields))
