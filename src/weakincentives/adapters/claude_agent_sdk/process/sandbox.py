"""The sandbox of commands: finds the programs that the CLI's sandbox needs, and builds its settings.

The CLI runs only `Bash` in a sandbox: bubblewrap, with socat for the network. If one of them is missing, the CLI runs
commands without a sandbox. So `Bash` is offered only where both are found and bubblewrap works, and the settings
demand the sandbox (`failIfUnavailable`).
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weakincentives.adapters.claude_agent_sdk.config import NetworkPolicy
from weakincentives.tools.jailed_shell import JailedShell, find_bubblewrap

_SECRET_PLACES = (
    *("/home", "/root", "/Users", "/srv", "/mnt", "/media", "/tmp", "/var/tmp"),  # noqa: S108 - they are hidden
    *("/etc/shadow", "/etc/gshadow", "/etc/ssl/private", "/etc/ssh", "/etc/kubernetes", "/run/secrets", "/run/user"),
    *("/var/lib", "/var/log", "/var/backups", "/var/mail", "/var/spool"),
)


@dataclass(frozen=True)
class SandboxPrograms:
    """The programs of the sandbox. `missing` says why there is none."""

    directories: tuple[str, ...] = ()
    missing: str | None = None


def find_programs(search_path: str | None = None) -> SandboxPrograms:
    """Find bubblewrap and socat. `search_path` is a PATH; None takes that of this process."""
    if sys.platform == "darwin":
        return SandboxPrograms()  # the sandbox of macOS is part of the system
    bubblewrap, reason = find_bubblewrap(), JailedShell.unavailable_reason()
    if bubblewrap is None or reason is not None:
        return SandboxPrograms(missing=reason)
    socat = shutil.which("socat", path=search_path)
    if socat is None:
        return SandboxPrograms(missing="socat is not installed: install the system's socat package")
    return SandboxPrograms((str(bubblewrap.parent), str(Path(socat).parent)))


def sandbox_settings(
    *, network: NetworkPolicy, readable: Sequence[Path], hidden: Sequence[Path], unwritable: Sequence[Path]
) -> dict[str, Any]:
    """The `sandbox` option of the SDK: no command runs without the sandbox, and none sees what is `hidden`.

    `readable` are directories that commands can read although they are below a hidden one.
    """
    return {
        "enabled": True,
        "autoAllowBashIfSandboxed": True,
        "allowUnsandboxedCommands": False,
        "failIfUnavailable": True,
        "network": {"allowedDomains": list(network.allowed_domains)},
        "filesystem": {
            "denyRead": [str(path) for path in hidden],
            "allowRead": [str(path) for path in readable],
            "denyWrite": [str(path) for path in unwritable],
        },
    }


def secret_places() -> list[Path]:
    """Places of this host with data of users and programs: homes, the working directory, temporary files, secrets."""
    places = {*map(Path, _SECRET_PLACES), Path.home(), Path.cwd(), Path(tempfile.gettempdir())}
    return sorted(place for place in places if place.exists() and place != Path("/"))
