"""Resource leaks: a thousand containers leak no process, descriptor, cgroup, memory or file."""

from __future__ import annotations

import contextlib
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from waiting import wait_until

from antwort.sandbox.host.process import descendants

CONTAINERS = 1_000
WARM_UP = 100
GROWTH_KILOBYTES = 8_000
"""Less than 8 KB per container."""


def memory_kilobytes(pid: int) -> dict[str, int]:
    """RSS of the server, and PSS of its descendants."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    shares = 0
    for each in descendants(pid)[1:]:
        with contextlib.suppress(OSError):  # exited, or init, which is not dumpable
            lines = Path(f"/proc/{each}/smaps_rollup").read_text(encoding="utf-8")
            shares += int(lines.partition("Pss_Anon:")[2].split()[0])
    return {"server": int(status.partition("VmRSS:")[2].split()[0]), "descendants": shares}


def disk_bytes(state: Path) -> int:
    return sum(path.stat().st_size for path in state.rglob("*") if path.is_file() and path.suffix != ".pyc")


def test_a_thousand_containers_leak_nothing(server):
    client = server.client

    def use(number: int) -> None:
        session = client.session()
        assert client.run(session, f"open('f', 'w').write('x' * 1000); {number}")["result"] == str(number)
        client.destroy(session)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(use, range(WARM_UP)))
        time.sleep(1)
        memory = memory_kilobytes(server.process.pid)
        disk = disk_bytes(server.state)
        list(threads.map(use, range(CONTAINERS)))
    assert server.leaked() == {}
    assert disk_bytes(server.state) == disk
    after = memory_kilobytes(server.process.pid)
    assert {name: after[name] - memory[name] for name in after if after[name] - memory[name] > GROWTH_KILOBYTES} == {}


def test_the_leak_check_detects_one_container_or_descriptor_and_ignores_warm_zygotes(serve, attacker_on, identity):
    """A test of `leaked`, which every attack test uses."""
    with serve(identity, modules="json") as running:
        with attacker_on(running) as attacker:
            for tenant in ("red", "blue", "red"):
                attacker.client.destroy(attacker.client.session(tenant=tenant))
        session = running.client.session(tenant="red")
        seen = running.leaked(seconds=3)
        assert (seen["zygotes"], seen["containers"], seen["processes"], seen["files"]) == (0, 1, 2, 1)
        running.client.destroy(session)
        assert running.leaked() == {}
        address = urlsplit(running.client.url)
        with socket.create_connection((address.hostname, address.port)):
            wait_until(lambda: running.leaked(seconds=0.5) == {"descriptors": 1})  # once it is accepted
        assert running.leaked() == {}
