"""Process handles, exit descriptions and descendants."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress

import pytest

from antwort.sandbox.host.process import ProcessHandle, descendants, describe_exit, shell_exit_code


def test_a_handle_signals_and_has_a_pid_until_the_exit():
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        process = ProcessHandle(os.pidfd_open(sleeper.pid))
        assert process.pid == sleeper.pid
        process.signal(signal.SIGTERM)
        assert sleeper.wait(10) == -signal.SIGTERM
        assert process.pid == -1
        process.signal(signal.SIGTERM)  # no effect: the process has exited
    process.close()
    process.close()
    assert not process.has_pidfd


def test_an_empty_handle_signals_nothing():
    process = ProcessHandle()
    process.signal(signal.SIGKILL)
    assert (process.has_pidfd, process.pid) == (False, -1)


def test_without_a_pidfd_the_pid_is_used_until_the_exit():
    with subprocess.Popen(["sleep", "60"]) as sleeper, subprocess.Popen(["sleep", "60"]) as other:
        process, forgotten = ProcessHandle(pid=sleeper.pid), ProcessHandle(pid=other.pid)
        assert (process.has_pidfd, process.pid) == (False, sleeper.pid)
        forgotten.mark_exited()
        forgotten.signal(signal.SIGKILL)
        process.signal(signal.SIGTERM)
        assert sleeper.wait(10) == -signal.SIGTERM
        process.signal(signal.SIGTERM)
        assert (forgotten.pid, other.poll()) == (-1, None)
        other.kill()
    process.close()
    assert process.pid == -1


@pytest.mark.parametrize(
    "status, description, code",
    [
        (0, "the interpreter exited with code 0", 0),
        (137, "the interpreter exited with code 137", 137),
        (255, "the interpreter exited with code 255", 255),
        (-9, "the interpreter was killed by SIGKILL", 137),
        (-11, "the interpreter was killed by SIGSEGV", 139),
        (-1, "the interpreter was killed by SIGHUP", 129),
        (-40, "the interpreter was killed by signal 40", 168),
    ],
)
def test_exit_status_as_description_and_shell_code(status, description, code):
    assert (describe_exit(status), shell_exit_code(status)) == (description, code)


def test_descendants_are_found_through_threads_and_generations():
    with subprocess.Popen(["sh", "-c", "sleep 20 & sleep 20 & wait"], stdout=subprocess.PIPE) as shell:
        while len(found := descendants(shell.pid)) < 3:
            pass
        assert set(found) <= set(descendants(os.getpid()))
        for pid in found:  # only these: other tests have servers running
            with suppress(ProcessLookupError):
                os.kill(pid, 9)


def test_descendants_of_an_unknown_pid():
    assert descendants(2**22 + 1) == [2**22 + 1]
