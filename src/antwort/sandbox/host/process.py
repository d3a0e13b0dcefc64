"""Processes: one held by a descriptor (a number alone could come to mean another), its end in words, its family."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Final

_SIGNALLED: Final = 128


class Process:
    """Signal it, ask for its number, let go of it.

    Where the system has no such descriptors (not on Linux) its number must do, and is forgotten as soon as its parent
    says that it has ended.
    """

    def __init__(self, pidfd: int = -1, *, pid: int = -1) -> None:
        self._pidfd = pidfd
        self._pid = pid

    @property
    def held(self) -> bool:
        return self._pidfd >= 0

    @property
    def pid(self) -> int:
        """The process id in our own pid namespace; negative when it has ended."""
        if not self.held:
            return self._pid
        with open(f"/proc/self/fdinfo/{self._pidfd}", encoding="ascii") as lines:  # noqa: PTH123 - not a path of ours
            return next((int(line.split()[1]) for line in lines if line.startswith("Pid:")), -1)

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.held:
                signal.pidfd_send_signal(self._pidfd, number)
            elif self._pid > 0:
                os.kill(self._pid, number)

    def by_number(self) -> Process:
        """The same once more, if its number is all there is to it."""
        return Process(pid=self._pid)

    def ended(self) -> None:
        """Its number may soon mean another; a descriptor never does."""
        self._pid = -1

    def close(self) -> None:
        self.ended()
        if self.held:
            os.close(self._pidfd)
            self._pidfd = -1


def described(status: int) -> str:
    """How the interpreter ended, in words. A status below zero is a signal's number, as `subprocess` has it."""
    if status >= 0:
        return f"the interpreter exited with code {status}"
    try:
        return f"the interpreter was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"the interpreter was ended by signal {-status}"


def shell_code(status: int) -> int:
    """The number that a shell would show for this end. Below zero is kept for runs that never came to one."""
    return status if status >= 0 else _SIGNALLED - status


def descendants(pid: int) -> list[int]:
    """The process and everything below it; orphans go to their namespace's init, so none is missed."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        current = waiting.pop()
        found.append(current)
        try:
            for task in Path(f"/proc/{current}/task").iterdir():
                waiting += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue  # ended meanwhile
    return found
