"""Attacks on resource accounting: hidden memory, and resources that the kernel counts per user."""

from __future__ import annotations

import time
from textwrap import dedent

import pytest

MEGABYTES = 600
"""More than twice the attacker's limit."""

HIDDEN = {
    "in a process that is not dumpable": """
import ctypes, os, time
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
x = []
for _ in range(MEGABYTES // 4):
    x.append(bytearray(b'x') * (4 << 20)); time.sleep(0.01)
""",
    "in memfds": """
import os, time
fds = []
for _ in range(MEGABYTES // 20):
    fds.append(os.memfd_create('m')); os.write(fds[-1], b'x' * (20 << 20)); time.sleep(0.03)
""",
    "in detached System V segments": """
import ctypes, time
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
for _ in range(MEGABYTES // 20):
    n = libc.shmget(0, 20 << 20, 0o1600)
    assert n >= 0, ctypes.get_errno()
    at = libc.shmat(n, None, 0); ctypes.memset(at, 1, 20 << 20); libc.shmdt(ctypes.c_void_p(at)); time.sleep(0.03)
""",
    "in unmapped shared pages": """
import mmap, time
maps = []
for _ in range(MEGABYTES // 20):
    m = mmap.mmap(-1, 20 << 20); m.write(b'x' * (20 << 20)); m.madvise(mmap.MADV_DONTNEED)
    maps.append(m); time.sleep(0.03)
""",
    "in shared pages of /dev/zero": """
import mmap, os, time
maps = []
for _ in range(MEGABYTES // 20):
    m = mmap.mmap(os.open('/dev/zero', os.O_RDWR), 20 << 20); m.write(b'x' * (20 << 20)); m.madvise(mmap.MADV_DONTNEED)
    maps.append(m); time.sleep(0.03)
""",
    "in the buffers of Unix sockets": """
import os, socket, time
pairs = []
for _ in range(5):
    if os.fork() == 0: break
for _ in range(480):
    a, b = socket.socketpair(); pairs.append((a, b))
    for s in (a, b):
        s.setblocking(False)
        try:
            while True: s.send(b'x' * 65536)
        except BlockingIOError: pass
time.sleep(2)
""",
    "in the buffers of TCP connections": """
import os, socket, time
pairs = []
for _ in range(5):
    if os.fork() == 0: break
server = socket.create_server(('127.0.0.1', 0), backlog=2000)
for _ in range(400):
    a = socket.create_connection(server.getsockname()); b, _ = server.accept(); pairs.append((a, b))
    for s in (a, b):
        s.setblocking(False)
        try:
            while True: s.send(b'x' * 65536)
        except BlockingIOError: pass
time.sleep(2)
""",
}


@pytest.mark.parametrize("how", HIDDEN)
def test_memory_cannot_be_hidden(attacker, how):
    """It is counted or refused, never granted in full."""
    seen = attacker.run(f"MEGABYTES = {MEGABYTES}\n{HIDDEN[how]}", timeout_seconds=30)
    assert seen["status"] in {"ended", "error"}
    assert seen["reason"] in {None, "oom", "it had more than 1024 sockets open"}
    assert seen["error"] is None or seen["error"]["name"] in {"OSError", "PermissionError", "AssertionError"}


EXHAUST = {
    "inotify instances": """
        x = []
        try:
            while True: x.append(libc.inotify_init1(0)); assert x[-1] >= 0
        except AssertionError: pass
    """,
    "timers": "t = ctypes.c_void_p()\nwhile libc.timer_create(0, None, ctypes.byref(t)) == 0: pass",
    "pipes": """
        x = []
        try:
            while True:
                x += os.pipe(); fcntl.fcntl(x[-1], 1031, 1 << 20)
        except OSError: pass
    """,
    "queued signals": """
        import signal
        signal.pthread_sigmask(0, {40})
        while libc.sigqueue(os.getpid(), 40, None) == 0: pass
    """,
    "locked memory": "m = mmap.mmap(-1, 6 << 20); assert libc.mlockall(3) or True",
    "semaphores": "while libc.semget(0, 250, 0o1600) >= 0: pass",
}
USE = """
import ctypes, fcntl, mmap, os, signal, threading, time
libc = ctypes.CDLL(None)
t = ctypes.c_void_p()
a, b = os.pipe()
signal.pthread_sigmask(0, {40})
works = [libc.timer_create(0, None, ctypes.byref(t)) == 0, os.write(b, b'x' * 4096) == 4096,
         libc.sigqueue(os.getpid(), 40, None) == 0]
os.close(a); os.close(b); libc.timer_delete(t)
works
"""


@pytest.mark.parametrize("what", EXHAUST)
def test_resources_counted_per_user_are_not_exhausted_for_siblings(attacker, what):
    prelude = "import ctypes, fcntl, mmap, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
    code = "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n" + "".join(
        f"        {line}\n" for line in f"{prelude}{dedent(EXHAUST[what])}\ntime.sleep(60)".splitlines()
    )
    assert attacker.run(f"{code}time.sleep(1)", timeout_seconds=30)["status"] in {"success", "ended"}
    time.sleep(0.5)
    assert attacker.run_in_sibling(USE)["result"] == str([True] * 3)
    assert attacker.client.execute("print(1)")["stdout"] == "1\n"
