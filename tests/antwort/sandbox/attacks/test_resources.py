"""Attacks on resources: they hurt their own container at most."""

from __future__ import annotations

import time

import pytest


def test_fork_bomb(arena):
    seen = arena.run("import os\nn = 0\ntry:\n    while True:\n        if os.fork() == 0:\n            import time; time.sleep(60)\n        n += 1\nexcept OSError as e:\n    error = e\nprint(n < 40, type(error).__name__)")  # fmt: skip
    assert seen["stdout"] == "True BlockingIOError\n"


def test_thread_bomb(arena):
    code = "import threading, time\nn = 0\ntry:\n    while True:\n        threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); n += 1\nexcept RuntimeError: pass\nn < 40"  # fmt: skip
    assert arena.value(code) == "True"


def test_memory_bomb_ends_its_container_with_oom(arena):
    seen = arena.run("x = []\nwhile True: x.append(bytearray(b'x') * (4 << 20))", timeout_seconds=30)
    assert (seen["status"], seen["reason"]) == ("ended", "oom")
    assert arena.client.post(f"/sessions/{arena.session}/execute", {"code": "1"}).status == 410


def test_memory_bomb_in_many_processes(arena):
    code = "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n        x = bytearray(b'x') * (64 << 20); time.sleep(60)\ntime.sleep(20)"  # fmt: skip
    seen = arena.run(code, timeout_seconds=30)
    assert (seen["status"], seen["reason"]) == ("ended", "oom")


def test_memory_of_files_counts_too(arena):
    code = "import os\nx = bytearray(b'x') * (180 << 20)\nfor p in ('/mnt/data/f', '/tmp/f', '/dev/shm/f'):\n    open(p, 'wb').write(b'x' * (31 << 20))\nimport time; time.sleep(20)"  # fmt: skip
    seen = arena.run(code, timeout_seconds=30)
    assert (seen["status"], seen["reason"]) == ("ended", "oom")


def test_spin_past_the_deadline_that_ignores_signals(arena):
    code = "import signal\nfor s in (1, 2, 3, 15): signal.signal(s, signal.SIG_IGN)\nwhile True: pass"
    started = time.monotonic()
    seen = arena.run(code, timeout_seconds=1)
    assert seen["status"] == "timeout"
    assert time.monotonic() - started < 3


def test_descriptor_exhaustion(arena):
    code = "import os\nfds = []\ntry:\n    while True: fds.append(os.open('/dev/null', 0))\nexcept OSError as e: error = e\nfor f in fds: os.close(f)\nlen(fds) <= 1024, error.errno"  # fmt: skip
    assert arena.value(code) == "(True, 24)"


@pytest.mark.parametrize("place", ["/mnt/data", "/tmp", "/dev/shm"])
def test_disk_fill(arena, place):
    code = f"error = None\ntry:\n    with open('{place}/f', 'wb') as f:\n        while True: f.write(b'x' * (1 << 20)); f.flush()\nexcept OSError as e: error = e\nimport os; os.unlink('{place}/f'); error.errno in (27, 28)"  # fmt: skip
    assert arena.value(code) == "True"


def test_inode_fill(arena):
    code = "n = 0\ntry:\n    while True: open(f'/mnt/data/{n}', 'w').close(); n += 1\nexcept OSError as e: error = e\nn <= 500, error.errno"  # fmt: skip
    assert arena.value(code) == "(True, 28)"


def test_sparse_file_of_a_terabyte(arena):
    code = "import os, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nfd = os.open('/mnt/data/s', os.O_CREAT | os.O_RDWR)\ntry: os.ftruncate(fd, 1 << 40)\nexcept OSError as e: error = e\nerror.errno in (22, 27)"  # fmt: skip
    assert arena.value(code) == "True"


def test_daemons_that_outlive_a_timeout_die_with_the_container(arena):
    code = "import subprocess\nsubprocess.Popen(['setsid', 'sh', '-c', 'trap \"\" TERM INT HUP; while :; do sleep 1; done'])\nimport signal\nsignal.signal(2, signal.SIG_IGN)\nwhile True: pass"  # fmt: skip
    assert arena.run(code, timeout_seconds=1)["status"] == "timeout"


def test_writing_everywhere_else(arena):
    code = "import os\nleft = []\nfor top in os.listdir('/'):\n    for d, _, _ in os.walk('/' + top):\n        if d.startswith(('/mnt/data', '/tmp', '/dev/shm', '/proc')) or d.count('/') > 4: continue\n        try: open(d + '/x', 'w').close(); left.append(d)\n        except OSError: pass\nleft"  # fmt: skip
    assert arena.value(code) == "[]"

