"""Zygote: a Python process with the stack imported, which forks containers on command.

It never receives or runs user code. It has no threads (a fork would not copy them), an empty environment, and one
descriptor: the command socket, over which the server sends the three descriptors of each new container.
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

from . import child, landlock, namespaces, privileges, rlimits, seccomp

_DESCRIPTORS_PER_FORK: Final = 3
_MAX_STATUS_BYTES: Final = 16
_EXIT_CHILD_RETURNED: Final = 72


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
    with warnings.catch_warnings(), open(os.devnull, "wb") as sink:  # noqa: PTH123 - a device
        warnings.simplefilter("ignore")
        pyplot.plot([0, 1])
        pyplot.title("warm")
        pyplot.savefig(sink, format="png", bbox_inches="tight")
        pyplot.close("all")


def _ignore_signal(number: int, frame: object) -> None:
    """A handler is needed so that the signal is written to the wake-up pipe."""
    del number, frame


def _read_status(status_pipe: int) -> int:
    """The interpreter's exit status as written by init; 0 if init died before, and its own status must do."""
    try:
        return int(os.read(status_pipe, _MAX_STATUS_BYTES) or 0)
    except BlockingIOError:
        return 0
    finally:
        os.close(status_pipe)


class Zygote:
    """Forks on command, reports exits."""

    def __init__(self, server: socket.socket, layers: frozenset[str]) -> None:
        self._server = server
        self._layers = layers
        rlimits.raise_nofile_limit()
        if "namespaces" not in layers and sys.platform == "linux":
            privileges.clear_dumpable()  # the code sees this process, and runs as the same user
        if "seccomp" in layers:
            scoped = "landlock" in layers and landlock.scopes_signals()
            for has_cgroup in (False, True):
                seccomp.assemble(
                    has_cgroup=has_cgroup, has_namespaces="namespaces" in layers, signals_are_scoped=scoped
                )
        self._children: dict[int, tuple[str, int]] = {}
        """By process id: the container's name, and the pipe to which init writes the interpreter's exit status."""
        # SIGCHLD arrives as a byte on a pipe, so that one poll waits for exits and commands.
        self._sigchld_pipe, wakeup = os.pipe()
        os.set_blocking(self._sigchld_pipe, False)
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _ignore_signal)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def serve(self) -> None:
        poll = select.poll()
        poll.register(self._server, select.POLLIN)
        poll.register(self._sigchld_pipe, select.POLLIN)
        self._send({"ready": True})
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self._sigchld_pipe:
                    self._report_exits()
                elif not self._handle_command():
                    return  # the server is gone; bubblewrap kills every container with the zygote

    def _handle_command(self) -> bool:
        message, descriptors, _, _ = socket.recv_fds(self._server, 4096, _DESCRIPTORS_PER_FORK)
        if not message:
            return False
        name = json.loads(message)["fork"]
        try:
            self._fork(name, descriptors)
        except OSError as error:
            self._send({"refused": name, "reason": str(error)})
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _fork(self, name: str, descriptors: list[int]) -> None:
        channel, output, errors = descriptors
        has_namespaces = "namespaces" in self._layers
        status_read, status_write = os.pipe()
        os.set_blocking(status_read, False)
        try:
            if has_namespaces:
                pid, pidfd = namespaces.fork()
            else:
                pid = os.fork()
                pidfd = os.pidfd_open(pid) if pid and hasattr(os, "pidfd_open") else -1
        except OSError:
            os.close(status_read)
            os.close(status_write)
            raise
        if pid == 0:
            try:
                fds = socket.socket(fileno=channel), output, errors
                if has_namespaces:
                    child.run_init(fds, self._layers, status_write)
                child.run_interpreter(fds, self._layers)
            finally:
                os._exit(_EXIT_CHILD_RETURNED)  # a child must never return here and continue as a second zygote
        os.close(status_write)
        self._children[pid] = name, status_read
        # In a pid namespace this pid means another process to the server.
        self._send({"forked": name} if has_namespaces else {"forked": name, "pid": pid}, [pidfd] if pidfd >= 0 else [])
        if pidfd >= 0:
            os.close(pidfd)

    def _report_exits(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._sigchld_pipe, 4096)
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid in self._children:
                name, status_read = self._children.pop(pid)
                self._send({"ended": name, "status": _read_status(status_read) or os.waitstatus_to_exitcode(status)})

    def _send(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        socket.send_fds(self._server, [json.dumps(message).encode()], descriptors or [])
