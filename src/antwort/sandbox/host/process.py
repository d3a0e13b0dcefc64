"""Process handles (pidfd, so that a reused pid is never signalled), exit descriptions; finds and kills descendants."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

_KILL_SECONDS: Final = 2.0
_KILL_PAUSE_SECONDS: Final = 0.005
_SIGNAL_EXIT_BASE: Final = 128


class ProcessHandle:
    """A process by its pidfd.

    Without pidfds (not Linux) it is a pid, which is forgotten as soon as the parent reports the exit.
    """

    def __init__(self, pidfd: int = -1, *, pid: int = -1) -> None:
        self._pidfd = pidfd
        self._pid = pid

    @property
    def has_pidfd(self) -> bool:
        return self._pidfd >= 0

    @property
    def pid(self) -> int:
        """The process id in the server's pid namespace; negative when it has exited."""
        if not self.has_pidfd:
            return self._pid
        with open(f"/proc/self/fdinfo/{self._pidfd}", encoding="ascii") as lines:  # noqa: PTH123 - a kernel file
            return next((int(line.split()[1]) for line in lines if line.startswith("Pid:")), -1)

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.has_pidfd:
                signal.pidfd_send_signal(self._pidfd, number)
            elif self._pid > 0:
                os.kill(self._pid, number)

    def copy_by_pid(self) -> ProcessHandle:
        """Another handle for the same pid, without a pidfd."""
        return ProcessHandle(pid=self._pid)

    def mark_exited(self) -> None:
        """Forget the pid, which the kernel may reuse; a pidfd stays valid."""
        self._pid = -1

    def close(self) -> None:
        self.mark_exited()
        if self.has_pidfd:
            os.close(self._pidfd)
            self._pidfd = -1


def describe_exit(status: int) -> str:
    """How the interpreter ended. A negative status is the number of a signal, as in `subprocess`."""
    if status >= 0:
        return f"the interpreter exited with code {status}"
    try:
        return f"the interpreter was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"the interpreter was killed by signal {-status}"


def shell_exit_code(status: int) -> int:
    """The exit code that a shell reports. Negative codes are reserved for code that was never run to an end."""
    return status if status >= 0 else _SIGNAL_EXIT_BASE - status


def descendants(pid: int) -> list[int]:
    """The process and all below it; orphans are reparented to the init of their namespace, so none is missed."""
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


def kill_descendants(pid: int, kept: Collection[int]) -> bool:
    """Kill the descendants that are not `kept`; whether none is left. Blocks.

    A pid that is listed may be reused before it is opened. So it is signalled only if it is listed again after that.
    """
    deadline = time.monotonic() + _KILL_SECONDS
    while found := [one for one in descendants(pid) if one not in kept and one != pid and not _is_zombie(one)]:
        if time.monotonic() > deadline:
            return False
        opened: dict[int, int] = {}
        try:
            for one in found:
                with contextlib.suppress(OSError):
                    opened[one] = os.pidfd_open(one)
            for one in set(descendants(pid)) & opened.keys():
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(opened[one], signal.SIGKILL)
        finally:
            for pidfd in opened.values():
                os.close(pidfd)
        time.sleep(_KILL_PAUSE_SECONDS)
    return True


def _is_zombie(pid: int) -> bool:
    """Whether the process has ended, and its parent has not waited for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return True
