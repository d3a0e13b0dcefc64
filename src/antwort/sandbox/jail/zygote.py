"""A Python with everything imported, that only forks.

It never runs user code and never sees any. It has no threads (a fork would tear them), an empty environment, and
one descriptor: the command socket, over which the server sends the three descriptors of each new container.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import warnings
from typing import Any, Final, NoReturn

from . import child, namespaces, rlimits, seccomp

_DESCRIPTORS: Final = 3
_VERDICT_BYTES: Final = 16
_LOST: Final = 72


def main(command: int, layers: str, modules: str) -> NoReturn:
    """Import everything, then fork on command until the server is gone."""
    server = socket.socket(fileno=command)
    try:
        preload([name for name in modules.split(",") if name])
    except ImportError as error:
        server.send(json.dumps({"failed": f"the stack cannot be imported: {error}"}).encode())
        sys.exit(1)
    Zygote(server, frozenset(filter(None, layers.split(",")))).serve()
    os._exit(0)


def preload(modules: list[str]) -> None:
    """Import the stack and freeze it."""
    for name in modules:
        importlib.import_module(name)
    if "matplotlib.pyplot" in modules:
        _warm_up_figures()
    # Frozen objects are never visited by the collector, so their pages stay shared with every fork.
    gc.collect()
    gc.freeze()


def _warm_up_figures() -> None:
    """Load fonts and renderer once here, instead of at the first figure of every container."""
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    with warnings.catch_warnings(), open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - a device, not a path of ours
        warnings.simplefilter("ignore")
        pyplot.plot([0, 1])
        pyplot.title("warm")
        pyplot.savefig(nowhere, format="png", bbox_inches="tight")
        pyplot.close("all")


def _wake(number: int, frame: object) -> None:
    """Only there so that the signal is delivered, and written to the wake-up pipe."""
    del number, frame


def _read(verdict: int) -> int:
    """How the interpreter ended, if init lived to write it; else 0, and init's own end is all that is known."""
    try:
        return int(os.read(verdict, _VERDICT_BYTES) or 0)
    except BlockingIOError:
        return 0
    finally:
        os.close(verdict)


class Zygote:
    """Forks on command, reports deaths."""

    def __init__(self, server: socket.socket, layers: frozenset[str]) -> None:
        self._server = server
        self._layers = layers
        rlimits.make_room()
        if "seccomp" in layers:
            for counted in (False, True):
                seccomp.assembled(counted=counted)
        self._alive: dict[int, tuple[str, int]] = {}
        """By process id: the name, and where init writes how the interpreter ended."""
        # Deaths arrive as a byte on a pipe, so that one poll waits for both.
        self._deaths, wakeup = os.pipe()
        os.set_blocking(self._deaths, False)
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _wake)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def serve(self) -> None:
        poll = select.poll()
        poll.register(self._server, select.POLLIN)
        poll.register(self._deaths, select.POLLIN)
        self._say({"ready": True})
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self._deaths:
                    self._report_deaths()
                elif not self._obey():
                    return  # the server is gone; bubblewrap ends every container with us

    def _obey(self) -> bool:
        message, descriptors, _, _ = socket.recv_fds(self._server, 4096, _DESCRIPTORS)
        if not message:
            return False
        name = json.loads(message)["fork"]
        try:
            self._fork(name, descriptors)
        except OSError as error:
            self._say({"refused": name, "why": str(error)})
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _fork(self, name: str, descriptors: list[int]) -> None:
        channel, output, errors = descriptors
        walled = "namespaces" in self._layers
        verdict, theirs = os.pipe()
        os.set_blocking(verdict, False)
        try:
            if walled:
                pid, pidfd = namespaces.fork()
            else:
                pid = os.fork()
                pidfd = os.pidfd_open(pid) if pid and hasattr(os, "pidfd_open") else -1
        except OSError:
            os.close(verdict)
            os.close(theirs)
            raise
        if pid == 0:
            try:
                seats = socket.socket(fileno=channel), output, errors
                if walled:
                    child.build(seats, self._layers, theirs)
                child.live(seats, self._layers)
            finally:
                os._exit(_LOST)  # a child must never come back here and go on as a second zygote
        os.close(theirs)
        self._alive[pid] = name, verdict
        # Behind walls its number here means another process to the server.
        self._say({"forked": name} if walled else {"forked": name, "pid": pid}, [pidfd] if pidfd >= 0 else [])
        if pidfd >= 0:
            os.close(pidfd)

    def _report_deaths(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._deaths, 4096)
        while self._alive:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid in self._alive:
                name, verdict = self._alive.pop(pid)
                self._say({"ended": name, "status": _read(verdict) or os.waitstatus_to_exitcode(status)})

    def _say(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        socket.send_fds(self._server, [json.dumps(message).encode()], descriptors or [])
