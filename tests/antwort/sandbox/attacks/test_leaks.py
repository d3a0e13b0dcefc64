"""A thousand containers come and go, and leave nothing."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from antwort.sandbox.process import descendants

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
        before, memory = server.traces(), memory_kilobytes(server.process.pid)
        disk = disk_bytes(server.state)
        list(threads.map(use, range(CONTAINERS)))
    assert server.left_over(before) == {}
    assert disk_bytes(server.state) == disk
    after = memory_kilobytes(server.process.pid)
    assert {who: after[who] - memory[who] for who in after if after[who] - memory[who] > GROWTH_KILOBYTES} == {}
