"""Living and dying with the process that started us.

The kernel can send a signal when a parent dies (`PR_SET_PDEATHSIG`), but it means the *thread* that started us, which
may end long before its process. So the parent keeps one end of a pipe whose other end is our standard input: the
kernel closes it when the parent is gone, however it went. Should another process have inherited that end, the parent's
own descriptor tells all the same.
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
_READ_BYTES: Final = 1 << 12


def watch(pipe: int = 0) -> int:
    """From now on end when the parent does: in good order, or at once if that takes too long. Answers its number."""
    mode = os.fstat(pipe).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        message = (
            "--with-parent needs a pipe as standard input, whose other end the parent keeps open as long as it lives"
        )
        raise Refused(message)
    parent = os.getppid()
    # A thread, and not the event loop: it must work while the loop is busy, and before there is one.
    threading.Thread(target=_end_with, args=(parent, pipe), name="parent", daemon=True).start()
    return parent


def _end_with(parent: int, pipe: int) -> None:
    _wait_for_its_end(parent, pipe)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def _wait_for_its_end(parent: int, pipe: int) -> None:
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    try:
        poll.register(os.pidfd_open(parent), select.POLLIN)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):
        pass  # not Linux, or forbidden: the pipe alone
    while True:
        for descriptor, _ in poll.poll():
            if descriptor != pipe or not os.read(pipe, _READ_BYTES):
                return
