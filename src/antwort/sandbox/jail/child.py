"""The first milliseconds of a container, as a story.

    zygote ── fork into namespaces ──▶ init ── fork ──▶ interpreter
                                        │                 waits for its limits, settles in, locks the door, serves
                                        └ reaps; when the interpreter ends it says how and ends, and the kernel ends
                                          all the rest

Up to `_lock` the code here is ours alone. After it, nothing can be undone from inside.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any, Final, NoReturn

from . import landlock, mounts, namespaces, privileges, rlimits, runner, seccomp, wire

USER: Final = 1000
HOST_NAME: Final = "sandbox"
_BEHIND_THE_SERVER: Final = 5  # where no control group shares out the processors
_SETUP_FAILED: Final = 71
_CHANNEL_GONE: Final = 70

StdFds = tuple[socket.socket, int, int]
"""The channel, and where standard output and standard error go."""


def build(seats: StdFds, layers: frozenset[str], verdict: int) -> NoReturn:
    """In the first process of the new namespaces: lay out the container, fork the interpreter, stay as init.

    The verdict, how the interpreter ended, goes through a pipe that no other process in here ever holds: init's own
    exit code has no room to tell `exit(137)` from a kill.
    """
    try:
        namespaces.become_somebody(USER, USER)
        namespaces.name_host(HOST_NAME)
        namespaces.raise_loopback()
        mounts.lay()
        namespaces.shrink_buffers()
        privileges.volunteer_for_oom()
    except OSError as error:
        _fail(seats[0], error)
    interpreter = os.fork()
    if interpreter == 0:
        live(seats, layers)
    place = rlimits.out_of_the_way()
    os.dup2(verdict, place)
    os.closerange(0, place)
    privileges.hide_memory()
    privileges.drop()
    os.write(place, str(_reap_until(interpreter)).encode())
    os._exit(0)


def _reap_until(interpreter: int) -> int:
    """Answers its exit code, or the number of the signal that ended it below zero."""
    while True:
        pid, status = os.wait()
        if pid == interpreter:
            return os.waitstatus_to_exitcode(status)


def live(seats: StdFds, layers: frozenset[str]) -> NoReturn:
    """In the interpreter: wait for the limits, settle in, lock the door, then serve until the channel closes."""
    channel = _take(seats)
    try:
        # The server reaches the process and its files by descriptors, never by a path that the code could bend.
        _hand_over(channel, "hello", [os.pidfd_open(os.getpid())] if hasattr(os, "pidfd_open") else [])
        limits = _first_frame(channel)
        _settle(limits, layers)
        os.chdir(limits["place"])
        places = (".", mounts.TMP, mounts.SHM) if "namespaces" in layers else (".",)
        descriptors = [os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for place in places]
        _lock(limits, layers)
        _hand_over(channel, "ready", descriptors)
    except (OSError, ValueError, KeyError) as error:
        _fail(channel, error)
    try:
        serving = runner.Runner(channel, limits["annex_place"])
        _forget()
        serving.serve()
    finally:
        os._exit(_CHANNEL_GONE)


def _hand_over(channel: socket.socket, word: str, descriptors: list[int]) -> None:
    socket.send_fds(channel, [wire.encode({word: True})], descriptors)
    for descriptor in descriptors:
        os.close(descriptor)


def _take(seats: StdFds) -> socket.socket:
    """Put the descriptors where they belong and close whatever else was inherited."""
    channel, output, errors = seats
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    place = rlimits.out_of_the_way()
    os.dup2(channel.detach(), place, inheritable=False)
    os.closerange(3, place)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    runner.open_streams()
    return socket.socket(fileno=place)


def _first_frame(channel: socket.socket) -> dict[str, Any]:
    """The limits. Nothing else is sent before they are answered, so there can be no second frame in the buffer."""
    decoder = wire.Decoder()
    while data := channel.recv(1 << 16):
        for header, _ in decoder.feed(data):
            return header
    os._exit(0)  # a spare that was not needed


def _settle(limits: dict[str, Any], layers: frozenset[str]) -> None:
    """Quotas, packages, environment, randomness."""
    if "namespaces" in layers:
        for place in (mounts.DATA, mounts.TMP, mounts.SHM):
            mounts.size(place, limits["disk_bytes"], limits["disk_files"])
        mounts.show_packages(limits["packages"], limits["annex"])
        if limits["memory_bytes"] is not None:
            mounts.make_zero_unmappable()
    os.environ.clear()
    os.environ.update(limits["environment"])
    # matplotlib looked its directory up in the zygote and remembers it.
    Path(limits["environment"]["MPLCONFIGDIR"]).mkdir(mode=0o700, parents=True, exist_ok=True)
    sys.path.extend(limits["path"])
    # Forks of one zygote share every generator's state; numpy's too, where it is loaded.
    random.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].__dict__["seed"]()
    tempfile.__dict__["_name_sequence"] = None
    tempfile.tempdir = None


def _lock(limits: dict[str, Any], layers: frozenset[str]) -> None:
    """Every wall that a process puts up around itself, the most powerful tool given up last."""
    rlimits.apply(processes=limits["processes"], file_bytes=limits["disk_bytes"], data_bytes=_data_bytes(limits))
    if limits["memory_bytes"] is not None:
        os.nice(_BEHIND_THE_SERVER)
    if "namespaces" in layers:
        namespaces.forbid_nested_users()
        privileges.drop()
    if "landlock" in layers or "seccomp" in layers:
        privileges.forbid_new()
    if "landlock" in layers:
        granted = ((path, landlock.READ) for path in limits["readable"])
        own = ((path, landlock.OWN) for path in limits["writable"])
        landlock.restrict((*landlock.RULES, *granted, *own, *landlock.own_process(os.getpid())))
    if "seccomp" in layers:
        seccomp.install(counted=limits["memory_bytes"] is None)


def _data_bytes(limits: dict[str, Any]) -> int | None:
    """The limit on data, and what the zygote's stack already takes of it; none where that is not told (macOS)."""
    told = Path("/proc/self/statm")
    if limits["memory_bytes"] is None or not told.exists():
        return None
    return limits["memory_bytes"] + int(told.read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")


def _forget() -> None:
    """Take our own modules out of sight; user code that imports `jail` finds nothing."""
    for name in [name for name in sys.modules if name == "jail" or name.startswith("jail.")]:
        del sys.modules[name]


def _fail(channel: socket.socket, error: Exception) -> NoReturn:
    channel.sendall(wire.encode({"failed": f"{type(error).__name__}: {error}"}))
    os._exit(_SETUP_FAILED)
