"""A thousand containers come and go, and leave nothing."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CONTAINERS = {"user": 1_000, "root": 300}


def resident_kilobytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.partition("VmRSS:")[2].split()[0])


def test_a_thousand_containers_leave_nothing(server):
    client = server.client

    def use(number: int) -> None:
        session = client.session()
        assert client.run(session, f"open('f', 'w').write('x' * 1000); {number}")["result"] == str(number)
        client.destroy(session)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(use, range(100)))
        time.sleep(1)
        before, memory = server.traces(), resident_kilobytes(server.process.pid)
        list(threads.map(use, range(CONTAINERS[server.identity])))
    deadline = time.monotonic() + 10
    while (after := server.traces()) != before and time.monotonic() < deadline:
        time.sleep(0.2)
    assert after == before
    assert resident_kilobytes(server.process.pid) - memory < 8_000
