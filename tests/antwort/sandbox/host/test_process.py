"""A process held by its descriptor, its end in words and as a number, and its family."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress

import pytest

from antwort.sandbox.host.process import Process, descendants, described, shell_code


def test_it_is_signalled_and_known_by_its_number_until_it_ends():
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        process = Process(os.pidfd_open(sleeper.pid))
        assert process.pid == sleeper.pid
        process.signal(signal.SIGTERM)
        assert sleeper.wait(10) == -signal.SIGTERM
        assert process.pid == -1
        process.signal(signal.SIGTERM)  # there is nobody any more, and nobody else is meant
    process.close()
    process.close()
    assert not process.held


def test_without_a_descriptor_nothing_happens_to_anybody():
    process = Process()
    process.signal(signal.SIGKILL)
    assert (process.held, process.pid) == (False, -1)


def test_where_there_are_no_descriptors_its_number_will_do_until_it_has_ended():
    with subprocess.Popen(["sleep", "60"]) as sleeper, subprocess.Popen(["sleep", "60"]) as other:
        process, forgotten = Process(pid=sleeper.pid), Process(pid=other.pid)
        assert (process.held, process.pid) == (False, sleeper.pid)
        forgotten.ended()
        forgotten.signal(signal.SIGKILL)
        process.signal(signal.SIGTERM)
        assert sleeper.wait(10) == -signal.SIGTERM
        process.signal(signal.SIGTERM)
        assert (forgotten.pid, other.poll()) == (-1, None)
        other.kill()
    process.close()
    assert process.pid == -1


@pytest.mark.parametrize(
    "status, words, code",
    [
        (0, "the interpreter exited with code 0", 0),
        (137, "the interpreter exited with code 137", 137),
        (255, "the interpreter exited with code 255", 255),
        (-9, "the interpreter was ended by SIGKILL", 137),
        (-11, "the interpreter was ended by SIGSEGV", 139),
        (-1, "the interpreter was ended by SIGHUP", 129),
        (-40, "the interpreter was ended by signal 40", 168),
    ],
)
def test_an_end_is_told_in_words_and_as_a_shell_would(status, words, code):
    assert (described(status), shell_code(status)) == (words, code)


def test_descendants_are_found_through_threads_and_generations():
    with subprocess.Popen(["sh", "-c", "sleep 20 & sleep 20 & wait"], stdout=subprocess.PIPE) as shell:
        while len(found := descendants(shell.pid)) < 3:
            pass
        assert set(found) <= set(descendants(os.getpid()))
        for pid in found:  # its own, and nobody else's: other tests have servers running
            with suppress(ProcessLookupError):
                os.kill(pid, 9)


def test_who_is_gone_has_only_itself():
    assert descendants(2**22 + 1) == [2**22 + 1]
