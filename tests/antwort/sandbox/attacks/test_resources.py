"""Attacks on resources: they hurt their own container at most."""

from __future__ import annotations

import time

import pytest

from antwort.sandbox.jail import mounts


def test_fork_bomb(arena):
    seen = arena.run("""
        import os
        n = 0
        try:
            while True:
                if os.fork() == 0:
                    import time; time.sleep(60)
                n += 1
        except OSError as e:
            error = e
        print(n < 40, type(error).__name__)
    """)
    assert seen["stdout"] == "True BlockingIOError\n"


def test_thread_bomb(arena):
    code = """
        import threading, time
        n = 0
        try:
            while True:
                threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); n += 1
        except RuntimeError: pass
        n < 40
    """
    assert arena.value(code) == "True"


def test_memory_bomb_ends_its_container_with_oom(arena):
    seen = arena.run("x = []\nwhile True: x.append(bytearray(b'x') * (4 << 20))", timeout_seconds=30)
    assert (seen["status"], seen["reason"]) == ("ended", "oom")
    assert arena.client.post(f"/sessions/{arena.session}/execute", {"code": "1"}).status == 410


def test_memory_bomb_in_many_processes(arena):
    code = """
        import os, time
        for _ in range(8):
            if os.fork() == 0:
                x = bytearray(b'x') * (64 << 20); time.sleep(60)
        time.sleep(20)
    """
    seen = arena.run(code, timeout_seconds=30)
    assert (seen["status"], seen["reason"]) == ("ended", "oom")


def test_memory_of_files_counts_too(arena):
    code = """
        import os
        x = bytearray(b'x') * (180 << 20)
        for p in ('/mnt/data/f', '/tmp/f', '/dev/shm/f'):
            open(p, 'wb').write(b'x' * (31 << 20))
        import time; time.sleep(20)
    """
    seen = arena.run(code, timeout_seconds=30)
    assert (seen["status"], seen["reason"]) == ("ended", "oom")


def test_spin_past_the_deadline_that_ignores_signals(arena):
    code = "import signal\nfor s in (1, 2, 3, 15): signal.signal(s, signal.SIG_IGN)\nwhile True: pass"
    started = time.monotonic()
    seen = arena.run(code, timeout_seconds=1)
    assert seen["status"] == "timeout"
    assert time.monotonic() - started < 3


def test_descriptor_exhaustion(arena):
    code = """
        import os
        fds = []
        try:
            while True: fds.append(os.open('/dev/null', 0))
        except OSError as e: error = e
        for f in fds: os.close(f)
        len(fds) <= 1024, error.errno
    """
    assert arena.value(code) == "(True, 24)"


@pytest.mark.parametrize("place", [mounts.DATA, mounts.TMP, mounts.SHM])
def test_disk_fill(arena, place):
    code = f"""
        error = None
        try:
            with open('{place}/f', 'wb') as f:
                while True: f.write(b'x' * (1 << 20)); f.flush()
        except OSError as e: error = e
        import os; os.unlink('{place}/f'); error.errno in (27, 28)
    """
    assert arena.value(code) == "True"


def test_inode_fill(arena):
    code = """
        n = 0
        try:
            while True: open(f'/mnt/data/{n}', 'w').close(); n += 1
        except OSError as e: error = e
        n <= 500, error.errno
    """
    assert arena.value(code) == "(True, 28)"


def test_sparse_file_of_a_terabyte(arena):
    code = """
        import os, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        fd = os.open('/mnt/data/s', os.O_CREAT | os.O_RDWR)
        try: os.ftruncate(fd, 1 << 40)
        except OSError as e: error = e
        error.errno in (22, 27)
    """
    assert arena.value(code) == "True"


def test_daemons_that_outlive_a_timeout_die_with_the_container(arena):
    code = """
        import subprocess
        subprocess.Popen(['setsid', 'sh', '-c', 'trap \"\" TERM INT HUP; while :; do sleep 1; done'])
        import signal
        signal.signal(2, signal.SIG_IGN)
        while True: pass
    """
    assert arena.run(code, timeout_seconds=1)["status"] == "timeout"


def test_writing_everywhere_else(arena):
    code = """
        import os
        left = []
        for top in os.listdir('/'):
            for d, _, _ in os.walk('/' + top):
                if d.startswith(('/mnt/data', '/tmp', '/dev/shm', '/proc')) or d.count('/') > 4: continue
                try: open(d + '/x', 'w').close(); left.append(d)
                except OSError: pass
        left
    """
    assert arena.value(code) == "[]"
