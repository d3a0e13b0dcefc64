"""Setup of one container: the child process after the fork, as init and as interpreter.

    zygote ── fork into namespaces ──▶ init ── fork ──▶ interpreter
                                        │                 waits for its limits, configures, locks down, serves calls
                                        └ reaps; when the interpreter exits, it reports the status and exits, and the
                                          kernel kills all other processes of the pid namespace

Up to `_lock_down` only trusted code has run. After it, nothing can be undone from inside.
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

UID: Final = 1000
HOST_NAME: Final = "sandbox"
_NICE_INCREMENT: Final = 5  # used where no cgroup limits CPU time
_EXIT_SETUP_FAILED: Final = 71
_EXIT_CHANNEL_CLOSED: Final = 70

StdFds = tuple[socket.socket, int, int]
"""The control channel, and the write ends of standard output and standard error."""


def run_init(fds: StdFds, layers: frozenset[str], status_pipe: int) -> NoReturn:
    """In the first process of the new namespaces: set up mounts and network, fork the interpreter, stay as init.

    The interpreter's exit status is written to a pipe that no other process in the container holds: init's own exit
    code could not distinguish `exit(137)` from a kill.
    """
    try:
        namespaces.map_user(UID, UID)
        namespaces.set_hostname(HOST_NAME)
        namespaces.bring_up_loopback()
        mounts.mount_private_filesystems()
        namespaces.limit_tcp_buffers()
        privileges.raise_oom_score()
    except OSError as error:
        _fail(fds[0], error)
    interpreter = os.fork()
    if interpreter == 0:
        run_interpreter(fds, layers)
    high = rlimits.highest_descriptor()
    os.dup2(status_pipe, high)
    os.closerange(0, high)
    privileges.clear_dumpable()
    privileges.drop_capabilities()
    os.write(high, str(_reap_until(interpreter)).encode())
    os._exit(0)


def _reap_until(interpreter: int) -> int:
    """Reap children until the interpreter exits; returns its exit code, or minus the signal that killed it."""
    while True:
        pid, status = os.wait()
        if pid == interpreter:
            return os.waitstatus_to_exitcode(status)


def run_interpreter(fds: StdFds, layers: frozenset[str]) -> NoReturn:
    """In the interpreter: wait for the limits, configure, lock down, then serve calls until the channel closes."""
    channel = _dup_fds(fds)
    try:
        if "namespaces" not in layers and sys.platform == "linux":
            privileges.set_dumpable()  # the zygote is not
        # The server accesses the process and its files by descriptors, never by a path that the code could redirect.
        _send_descriptors(channel, "hello", [os.pidfd_open(os.getpid())] if hasattr(os, "pidfd_open") else [])
        limits = _receive_limits(channel)
        _configure(limits, layers)
        os.chdir(limits["data_dir"])
        directories = (".", mounts.TMP, mounts.SHM) if "namespaces" in layers else (".",)
        descriptors = [os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for path in directories]
        _lock_down(limits, layers)
        _send_descriptors(channel, "ready", descriptors)
    except (OSError, ValueError, KeyError) as error:
        _fail(channel, error)
    try:
        server = runner.Runner(channel, limits["session_packages_dir"])
        _unload_own_modules()
        server.serve()
    finally:
        os._exit(_EXIT_CHANNEL_CLOSED)


def _send_descriptors(channel: socket.socket, message: str, descriptors: list[int]) -> None:
    socket.send_fds(channel, [wire.encode({message: True})], descriptors)
    for descriptor in descriptors:
        os.close(descriptor)


def _dup_fds(fds: StdFds) -> socket.socket:
    """Put the descriptors at their numbers and close all others that were inherited."""
    channel, output, errors = fds
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    high = rlimits.highest_descriptor()
    os.dup2(channel.detach(), high, inheritable=False)
    os.closerange(3, high)
    signal.set_wakeup_fd(-1)
    # The last two are ignored by a server that was started with `nohup`, or in the background of a script.
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    runner.open_streams()
    return socket.socket(fileno=high)


def _receive_limits(channel: socket.socket) -> dict[str, Any]:
    """The first frame. The server sends nothing else before `ready`, so no second frame can be in the buffer."""
    decoder = wire.Decoder()
    while data := channel.recv(1 << 16):
        for header, _ in decoder.feed(data):
            return header
    os._exit(0)  # a preforked container that was not needed


def _configure(limits: dict[str, Any], layers: frozenset[str]) -> None:
    """Set up quotas, packages, environment and random seeds."""
    if "namespaces" in layers:
        for path in (mounts.DATA, mounts.TMP, mounts.SHM):
            mounts.set_quota(path, limits["disk_bytes"], limits["disk_files"])
        mounts.mount_packages(limits["packages"], limits["session_packages"])
        if limits["memory_bytes"] is not None:
            mounts.make_zero_unmappable()
    os.environ.clear()
    os.environ.update(limits["environment"])
    # matplotlib determined its directory in the zygote and caches it.
    Path(limits["environment"]["MPLCONFIGDIR"]).mkdir(mode=0o700, parents=True, exist_ok=True)
    sys.path.extend(limits["sys_path"])
    # Forks of one zygote share the state of every random generator; also numpy's, if loaded.
    random.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].__dict__["seed"]()
    tempfile.__dict__["_name_sequence"] = None
    tempfile.tempdir = None


def _lock_down(limits: dict[str, Any], layers: frozenset[str]) -> None:
    """Every restriction that a process puts on itself, ordered so that each can still be applied."""
    has_namespaces = "namespaces" in layers
    # Without a user namespace the kernel would count all processes of this user, also those of other pods of the node.
    processes = limits["processes"] if has_namespaces else None
    rlimits.apply(processes=processes, file_bytes=limits["disk_bytes"], data_bytes=_data_bytes(limits))
    if limits["memory_bytes"] is not None:
        os.nice(_NICE_INCREMENT)
    if has_namespaces:
        namespaces.forbid_nested_user_namespaces()
        privileges.drop_capabilities()
    if "landlock" in layers or "seccomp" in layers:
        privileges.set_no_new_privs()
    if "landlock" in layers:
        granted = ((path, landlock.READ) for path in limits["readable"])
        own = ((path, landlock.READ_WRITE) for path in limits["writable"])
        rules = landlock.RULES if has_namespaces else landlock.SHARED_RULES
        landlock.restrict((*rules, *granted, *own, *landlock.own_proc_rules(os.getpid())))
    if "seccomp" in layers:
        seccomp.install(
            has_cgroup=limits["memory_bytes"] is None,
            has_namespaces=has_namespaces,
            signals_are_scoped="landlock" in layers and landlock.scopes_signals(),
        )


def _data_bytes(limits: dict[str, Any]) -> int | None:
    """RLIMIT_DATA: the memory limit plus what the zygote already uses; None where that is unknown (macOS)."""
    statm = Path("/proc/self/statm")
    if limits["memory_bytes"] is None or not statm.exists():
        return None
    return limits["memory_bytes"] + int(statm.read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")


def _unload_own_modules() -> None:
    """Remove the `jail` modules from `sys.modules`, so that user code cannot import them."""
    for name in [name for name in sys.modules if name == "jail" or name.startswith("jail.")]:
        del sys.modules[name]


def _fail(channel: socket.socket, error: Exception) -> NoReturn:
    channel.sendall(wire.encode({"failed": f"{type(error).__name__}: {error}"}))
    os._exit(_EXIT_SETUP_FAILED)
