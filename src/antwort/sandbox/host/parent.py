"""Parent watch: the server exits when its parent process exits (`--with-parent`).

`PR_SET_PDEATHSIG` signals the exit of the parent *thread*, which may end long before its process. So the parent keeps
one end of a pipe whose other end is the server's standard input: the kernel closes it when the parent is gone. In case
another process has inherited that end, the parent's pidfd is watched, too.

A server that is process 1 of a pod or a container has the parent pid 0: that of another pid namespace, which has no
pidfd. There the pipe alone is watched.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import threading
import time
from typing import Final

from antwort.sandbox.errors import Refused

_GRACE_SECONDS: Final = 10.0
_SHELL_SIGNAL_EXIT: Final = 128
_READ_BYTES: Final = 1 << 12


def watch(pipe: int = 0) -> int:
    """Exit when the parent does: SIGTERM first, at once after a grace period. Returns the parent's pid, or 0."""
    mode = os.fstat(pipe).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        message = "--with-parent needs a pipe as standard input, whose other end the parent keeps open until it exits"
        raise Refused(message)
    parent = os.getppid()
    # A thread, not the event loop: it must work while the loop is busy or not started.
    threading.Thread(target=_exit_with_parent, args=(parent, pipe), name="parent", daemon=True).start()
    return parent


def _exit_with_parent(parent: int, pipe: int) -> None:
    _wait_for_parent_exit(parent, pipe)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    os._exit(_SHELL_SIGNAL_EXIT + signal.SIGKILL)  # not a signal: the kernel ignores those of process 1 to itself


def _wait_for_parent_exit(parent: int, pipe: int) -> None:
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    try:
        poll.register(os.pidfd_open(parent), select.POLLIN)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):
        pass  # not Linux, or forbidden: watch the pipe alone
    while True:
        for descriptor, _ in poll.poll():
            if descriptor != pipe or not os.read(pipe, _READ_BYTES):
                return
