"""Isolation from the host, the server and other tenants: sockets, environment, memory, zygotes, signals."""

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


def test_no_unix_socket_is_visible(attacker):
    assert attacker.evaluate(SOCKETS) == "[]"


def test_unix_sockets_of_the_host_are_not_reachable(attacker, tmp_path):
    """Landlock does not restrict connect, so no directory of the host is visible, not even the server's own."""
    directories = [attacker.server.state, attacker.server.state / "packages", tmp_path, Path("/tmp"), Path("/dev/shm")]  # noqa: S108 - the host's
    with contextlib.ExitStack() as stack:
        for directory in directories:
            listening = stack.enter_context(socket.socket(socket.AF_UNIX))
            path = directory / f"attacked-{os.getpid()}"
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
            assert attacker.evaluate(code) == "[]"


def test_the_environment_of_parent_processes_is_not_readable(attacker):
    assert attacker.evaluate(ENVIRONMENTS) == "([], 1)"


def test_memory_is_limited_with_and_without_cgroups(attacker):
    cgroups = attacker.client.call("GET", "/health").json["isolation"]["cgroups"]
    if os.geteuid() == 0:
        assert attacker.server.identity == "root" or cgroups.startswith("no")
    seen = attacker.run("import numpy\nx = [numpy.ones(1 << 20) for _ in range(400)]", timeout_seconds=30)
    assert seen["reason"] == "oom" or "MemoryError" in seen["stderr"]


def test_tenants_never_share_a_zygote(server):
    """Forks of one zygote have the same hash seed, so different hashes mean different zygotes."""
    client = server.client
    sessions = [client.session(tenant=tenant) for tenant in ("red", "red", "blue")]
    hashes = [client.run(session, "hash('seed'), hex(id(object))")["result"] for session in sessions]
    for session in sessions:
        client.destroy(session)
    assert hashes[0] == hashes[1] != hashes[2]


def test_children_of_the_zygote_have_a_clean_environment(attacker):
    seen = attacker.run("import subprocess\nprint(subprocess.run(['env'], capture_output=True, text=True).stdout)")
    assert "PATH" in seen["stdout"]
    assert "4711" not in seen["stdout"]
    assert "SANDBOX" not in seen["stdout"]


def test_an_interrupt_reaches_the_interpreter_and_not_only_bubblewrap(attacker):
    started = time.monotonic()
    seen = attacker.run("import time; time.sleep(30)", timeout_seconds=1)
    assert seen["status"] == "timeout"
    assert time.monotonic() - started < 1.5
    assert attacker.evaluate("'alive'") == "'alive'"
