"""A process held by its descriptor, and its end in words and as a number."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from antwort.sandbox.process import Process, described, shell_code


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
