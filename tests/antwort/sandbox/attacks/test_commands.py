"""Attacks by shell commands: escape, resources, background processes, other tenants' output, read-only places."""

from __future__ import annotations

import time

import pytest


def command(attacker, text: str, **fields):
    return attacker.client.command(attacker.session, text, **fields)


def test_a_fork_bomb_ends_with_its_command(attacker):
    report = command(attacker, "f() { f | f & }; f; sleep 60", timeout_ms=1500)
    assert report["status"] in ("timeout", "ended"), report
    if report["status"] == "timeout":
        assert command(attacker, "echo alive")["stdout"] == "alive\n"


def test_processes_that_left_the_session_are_killed_at_the_timeout(attacker):
    escape = """
        python3 - <<'EOF'
        import os, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                while True:
                    open('beat', 'a').write('x'); time.sleep(0.05)
            os._exit(0)
        time.sleep(60)
        EOF
    """
    lines = "\n".join(line.removeprefix("        ") for line in escape.strip("\n").splitlines())
    assert command(attacker, lines, timeout_ms=1500)["status"] == "timeout"
    size = attacker.run("import os; os.path.getsize('beat')")["result"]
    time.sleep(0.3)
    assert attacker.run("os.path.getsize('beat')")["result"] == size


def test_a_background_process_cannot_write_into_the_output_of_a_later_command(attacker):
    background = "(while true; do echo noise; echo noise >&2; sleep 0.01; done) & echo first"
    assert command(attacker, background)["stdout"].count("first") == 1
    for _ in range(5):
        report = command(attacker, "sleep 0.05; echo mine")
        assert (report["stdout"], report["stderr"]) == ("mine\n", ""), report


def test_code_cannot_write_into_the_output_of_a_command(attacker):
    attacker.run("""
        import os, threading, time
        def noise():
            while True:
                for fd in range(1, 20):
                    try: os.write(fd, b'noise')
                    except OSError: pass
                time.sleep(0.001)
        threading.Thread(target=noise, daemon=True).start()
    """)
    report = command(attacker, "sleep 0.2; echo mine")
    if report["status"] != "ended":  # the thread may have written into the control channel, which ends the container
        assert report["stdout"].replace("noise", "") == "mine\n", report


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "/usr/bin/env", "/opt/python/x", "/opt/stack/x", "/proc/sys/kernel/core_pattern"]
)
def test_read_only_places(attacker, path):
    report = command(attacker, f"echo x > {path}")
    assert report["exit_code"] != 0, report


@pytest.mark.parametrize(
    "text",
    [
        "cat /proc/1/environ",
        "mount -t tmpfs none /mnt/data",
        "unshare -r true",
        "nsenter -t 1 -a true",
        "chroot / true",
        "su -c true",
        "cat /etc/shadow",
        "kill -9 1",
        "ls /root /home/*",
        "cat /dev/mem",
        "mknod x b 8 0",
    ],
)
def test_escapes_fail(attacker, text):
    report = command(attacker, f'{text}; echo "code $?"', timeout_ms=10_000)
    assert "code 0" not in report["stdout"], report
    assert attacker.server.secret not in report["stdout"] + report["stderr"]
    assert command(attacker, "echo alive")["stdout"] == "alive\n"


def test_there_is_no_network(attacker):
    probe = "import socket; socket.create_connection(('{}', 80), 2)"
    for address in ("1.1.1.1", "169.254.169.254", "example.com"):
        report = command(attacker, f'python3 -c "{probe.format(address)}"')
        assert report["exit_code"] == 1, report
        assert "rror: [Errno" in report["stderr"]


def test_the_environment_of_the_server_is_not_visible(attacker):
    report = command(attacker, "env; cat /proc/self/environ /proc/$PPID/environ")
    assert attacker.server.secret not in report["stdout"] + report["stderr"]


def test_a_flood_of_output_is_truncated(attacker):
    report = command(attacker, "yes | head -c 200000000; echo end")
    assert report["exit_code"] == 0
    assert report["stdout"].endswith("y\nend\n")
    assert len(report["stdout"]) < 2 << 20
    assert report["cut_bytes"] > 100_000_000


def test_a_memory_bomb_ends_the_command_or_its_container(attacker):
    report = command(
        attacker, "python3 -c \"x = []\nwhile True: x.append(bytearray(b'x') * (4 << 20))\"", timeout_ms=30_000
    )
    if report["status"] == "ended":
        assert report["reason"] == "oom"
    else:  # a limit of the process
        assert report["exit_code"] != 0


def test_a_full_disk_fails_the_command(attacker):
    report = command(attacker, "head -c 200000000 /dev/zero > big; echo $?")
    assert report["stdout"] != "0\n", report


def test_a_command_that_kills_the_interpreter_ends_the_container(attacker):
    report = command(attacker, "kill -9 -1; echo here")
    assert report["status"] == "ended" or report["exit_code"] == 137, report
