"""Jail of an MCP server that is a program: its command line, its limits, and a check that it can be started."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Final

from antwort.sandbox.errors import CannotStart
from antwort.sandbox.host.bubblewrap import Launch, MountArguments
from antwort.sandbox.host.probe import UIDS
from antwort.sandbox.jail.rlimits import MAX_OPEN_FILES
from antwort.sandbox.limits import ContainerLimits
from antwort.tools.mcp.client.targets import StdioTarget

_NETWORK_FILES: Final = ("/etc/resolv.conf", "/etc/ssl", "/usr/share/ca-certificates")
_BLOCK: Final = 512
_LIMIT_SCRIPT: Final = (
    'ulimit -c 0; ulimit -d "$1"; ulimit -f "$3"; ulimit -n "$4"; '
    '(ulimit -u "$2") 2>/dev/null && ulimit -u "$2" || ulimit -p "$2"; '
    'shift 4; exec "$@"'
)
"""Shells name the limit of processes `-u` or `-p`. A limit that fails is lower already."""
_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_CHECK_TIMEOUT: Final = 20


def limits_of(target: StdioTarget) -> ContainerLimits:
    """The limits of the program, by default those of a container."""
    default = ContainerLimits()
    return replace(
        default,
        memory_bytes=target.max_memory or default.memory_bytes,
        processes=target.max_processes or default.processes,
    )


def jailed(target: StdioTarget, wait_for: int | None = None) -> Launch:
    """The command line of the program in its jail; it waits for the descriptor. A server that is root drops root first.

    The rlimits are set inside, since the limit of processes is that of a user namespace.
    """
    limits, uid = limits_of(target), UIDS[-3] if os.geteuid() == 0 else None
    tree = MountArguments()
    tree.read_only(Path("/usr"), "/usr")
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        tree.bind_or_symlink(name)
    for file in ("/etc/ld.so.cache", "/etc/alternatives", *(_NETWORK_FILES if target.has_network else ())):
        tree.read_only(Path(file), file)
    for folder in target.folders:
        tree.read_only(Path(folder), folder)
    for folder in target.writable_folders:
        tree.writable(Path(folder), folder)
    environment = {"PATH": _PATH, "HOME": "/tmp", "LANG": "C.UTF-8", **dict(target.environment)}  # noqa: S108 - its own
    values = (limits.memory_bytes // 1024, limits.processes, limits.disk_bytes // _BLOCK, MAX_OPEN_FILES)
    inside = ["/bin/sh", "-c", _LIMIT_SCRIPT, "sh", *map(str, values), *target.command]
    return tree.launch(
        inside, environment, uid, network=target.has_network, wait_for=wait_for, tmp_bytes=limits.disk_bytes
    )


def missing_folder(target: StdioTarget) -> str | None:
    """A folder of the configuration that does not exist. Blocks."""
    return next((one for one in (*target.folders, *target.writable_folders) if not Path(one).is_dir()), None)


def problem_of_jail(target: StdioTarget) -> str | None:
    """Why the program cannot be started in its jail; None if it can. Does not start it. Blocks."""
    if (folder := missing_folder(target)) is not None:
        return f"the folder {folder} does not exist"
    look = ("/bin/sh", "-c", 'command -v -- "$1" >/dev/null', "sh", target.command[0])
    try:
        launch = jailed(replace(target, command=look))
        try:
            done = subprocess.run(  # noqa: S603 - of the operator
                launch.argv,
                pass_fds=launch.descriptors,
                env={},
                capture_output=True,
                timeout=_CHECK_TIMEOUT,
                check=False,
                cwd="/",
            )
        finally:
            launch.close()
    except (CannotStart, OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    reported = done.stderr.decode(errors="replace").strip().splitlines()
    return reported[-1] if reported else f"there is no program {target.command[0]} in its jail"
