"""Runs a command in a network namespace that has no interface but loopback.

    python scripts/offline.py COMMAND...

Clients of other projects send reports to their makers, look for updates, and download what they miss. In tests they
reach the server on loopback and nothing else. Root needs no user namespace; any other user keeps its id in a new one.
"""

from __future__ import annotations

import os
import sys

from antwort.sandbox.jail import syscalls
from antwort.sandbox.jail.namespaces import CLONE_NEWNET, CLONE_NEWUSER, bring_up_loopback, map_user


def enter_network_namespace() -> None:
    """Move this process into a network namespace of its own, with loopback enabled."""
    uid, gid = os.getuid(), os.getgid()
    try:
        syscalls.call("unshare", CLONE_NEWNET)
    except PermissionError:
        syscalls.call("unshare", CLONE_NEWUSER | CLONE_NEWNET)
        map_user(uid, gid)
    bring_up_loopback()


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(f"usage: {sys.argv[0]} COMMAND...")
    if sys.platform != "linux":
        sys.exit(f"{sys.argv[0]}: network namespaces need Linux; this is {sys.platform}")
    try:
        enter_network_namespace()
    except OSError as error:
        sys.exit(f"{sys.argv[0]}: no network namespace: {error}; run as root, or allow user namespaces on this host")
    try:
        os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - no shell
    except OSError as error:
        sys.exit(f"{sys.argv[0]}: {sys.argv[1]}: {error}")
