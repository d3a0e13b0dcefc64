"""A thousand containers come and go, and leave nothing."""

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
"""Less than 8 KB for each container."""


def memory_kilobytes(pid: int) -> dict[str, int]:
    """What the server holds itself, and what its family does beside it; shared pages in shares."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    shares = 0
    for each in descendants(pid)[1:]:
        with contextlib.suppress(OSError):  # gone, or init, which hides itself and holds nothing
            lines = Path(f"/proc/{each}/smaps_rollup").read_text(encoding="utf-8")
            shares += int(lines.partition("Pss_Anon:")[2].split()[0])
    return {"server": int(status.partition("VmRSS:")[2].split()[0]), "family": shares}


def disk_bytes(state: Path) -> int:
    return sum(path.stat().st_size for path in state.rglob("*") if path.is_file() and path.suffix != ".pyc")


def test_a_thousand_containers_leave_nothing(server):
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
    assert server.left_over() == {}
    assert disk_bytes(server.state) == disk
    after = memory_kilobytes(server.process.pid)
    assert {who: after[who] - memory[who] for who in after if after[who] - memory[who] > GROWTH_KILOBYTES} == {}


def test_the_least_that_is_left_is_seen_and_a_warm_zygote_is_not_taken_for_it(serve, arena_on, identity):
    """The check itself: every other attack leans on it."""
    with serve(identity, modules="json") as running:
        with arena_on(running) as arena:
            for tenant in ("red", "blue", "red"):
                arena.client.destroy(arena.client.session(tenant=tenant))
        session = running.client.session(tenant="red")
        seen = running.left_over(seconds=3)
        assert (seen["zygotes"], seen["containers"], seen["processes"], seen["files"]) == (0, 1, 2, 1)
        running.client.destroy(session)
        assert running.left_over() == {}
        address = urlsplit(running.client.url)
        with socket.create_connection((address.hostname, address.port)):
            wait_until(lambda: running.left_over(seconds=0.5) == {"descriptors": 1})  # once it has been taken
        assert running.left_over() == {}
