"""Holes that an earlier prototype had, one test each."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path

SOCKETS = """
import os, stat
found = []
for d, _, files in os.walk('/'):
    if d.startswith('/proc'):
        continue
    for f in files:
        p = os.path.join(d, f)
        if not os.path.islink(p) and os.path.exists(p) and stat.S_ISSOCK(os.stat(p).st_mode):
            found.append(p)
found
"""

ENVIRONMENTS = """
import os
hits = []
for pid in [0, 1, os.getppid(), *range(3, 500)]:
    try:
        hits.append(open(f'/proc/{pid}/environ', 'rb').read())
    except OSError:
        pass
hits, os.getppid()
"""


def test_no_unix_socket_of_the_server_can_be_reached_by_a_path(arena):
    assert arena.value(SOCKETS) == "[]"


def test_no_unix_socket_of_the_host_can_be_reached_by_a_path(arena, tmp_path):
    """Landlock would not stop it, so no place where one may lie is in sight: not even the server's own directory."""
    places = [arena.server.state, arena.server.state / "packages", tmp_path, Path("/tmp"), Path("/dev/shm")]  # noqa: S108 - the host's
    with contextlib.ExitStack() as stack:
        for place in places:
            listening = stack.enter_context(socket.socket(socket.AF_UNIX))
            path = place / f"attacked-{os.getpid()}"
            listening.bind(str(path))
            stack.callback(path.unlink)
            path.chmod(0o777)
            listening.listen()
            code = f"""
                import socket
                found = []
                for path in ({str(path)!r}, '/opt/packages/' + {path.name!r}, '/proc/1/root' + {str(path)!r}):
                    try: socket.socket(socket.AF_UNIX).connect(path); found.append(path)
                    except OSError: pass
                found
            """
            assert arena.value(code) == "[]"


def test_the_environment_of_parents_is_out_of_sight(arena):
    assert arena.value(ENVIRONMENTS) == "([], 1)"


def test_memory_is_limited_with_and_without_control_groups(arena):
    groups = arena.client.call("GET", "/health").json["isolation"]["cgroups"]
    if os.geteuid() == 0:
        assert arena.server.identity == "root" or groups.startswith("no")
    seen = arena.run("import numpy\nx = [numpy.ones(1 << 20) for _ in range(400)]", timeout_seconds=30)
    assert seen["reason"] == "oom" or "MemoryError" in seen["stderr"]


def test_tenants_never_share_a_zygote(server):
    """Forks of one zygote have the same hash seed, so a difference shows two zygotes."""
    client = server.client
    sessions = [client.session(tenant=tenant) for tenant in ("red", "red", "blue")]
    hashes = [client.run(session, "hash('seed'), hex(id(object))")["result"] for session in sessions]
    for session in sessions:
        client.destroy(session)
    assert hashes[0] == hashes[1] != hashes[2]


def test_children_of_the_zygote_have_a_clean_environment(arena):
    seen = arena.run("import subprocess\nprint(subprocess.run(['env'], capture_output=True, text=True).stdout)")
    assert "PATH" in seen["stdout"]
    assert "4711" not in seen["stdout"]
    assert "SANDBOX" not in seen["stdout"]


def test_an_interrupt_reaches_the_interpreter_and_not_only_bubblewrap(arena):
    started = time.monotonic()
    seen = arena.run("import time; time.sleep(30)", timeout_seconds=1)
    assert seen["status"] == "timeout"
    assert time.monotonic() - started < 1.5
    assert arena.value("'alive'") == "'alive'"
