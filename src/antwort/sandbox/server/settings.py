"""The server's settings: `SANDBOX_*` in the environment, overridden on the command line."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from antwort.sandbox.errors import BadPath, Refused
from antwort.sandbox.files.quota import Quota
from antwort.sandbox.files.tree import split_path
from antwort.sandbox.limits import GIB
from antwort.sandbox.packages.manager import PackageLimits

_LAST_PORT: Final = 65_535
_LEAST: Final = {
    "max_concurrent": 1,
    "queue": 0,
    "queue_seconds": 0,
    "max_sessions": 1,
    "max_sessions_per_tenant": 1,
    "session_seconds": 1,
    "max_install_bytes": 1 << 20,
    "max_install_files": 100,
    "max_install_seconds": 1,
    "max_installs": 1,
    "install_queue": 0,
    "max_packages_bytes": 1 << 20,
    "max_body_bytes": 1 << 10,
    "max_timeout_seconds": 1,
    "max_output_bytes": 1 << 10,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSettings:
    """Each field is read from `SANDBOX_` and its name in capitals."""

    host: str = "127.0.0.1"
    port: int = 8080
    uds: str | None = None
    """The path of a Unix socket to listen on, instead of host and port."""
    mode: str = "python"
    max_concurrent: int = 3
    """Executions of `/execute` at once."""
    queue: int = 0
    """How many requests may wait for a place, in order; past it the answer is 429."""
    queue_seconds: float = 5.0
    max_sessions: int = 64
    max_sessions_per_tenant: int = 32
    """Fewer than there are, so that nobody can take them all."""
    session_seconds: int = 1200
    """A session idle for longer is ended."""
    python_index: str | None = None
    output_dir: str = "output"
    token: str | None = None
    state: Path = Path(".antwort/sandbox")
    builds: bool = False
    """Also install packages that must be built, which runs their code in the installer's jail."""
    max_install_bytes: int = GIB
    """What one installation of packages may take of the disk, while it runs and afterwards."""
    max_install_files: int = 100_000
    max_install_seconds: int = 300
    max_installs: int = 2
    """Installations at once."""
    install_queue: int = 32
    """How many may wait for those, one tenant's after another's; past it the answer is 429."""
    max_packages_bytes: int = 8 * GIB
    """All packages that are kept; past it those in no container go, the longest unused first."""
    modules: str = "numpy,pandas,matplotlib,matplotlib.pyplot"
    """What is imported ahead of time."""
    max_body_bytes: int = 64 << 20
    """JSON bodies; files and archives are limited by the container's own quota."""
    max_timeout_seconds: int = 3600
    max_output_bytes: int = 1 << 20
    allow_weaker_isolation: str = ""
    """Names of missing protections that the operator accepts, separated by commas."""

    @property
    def local(self) -> bool:
        """Only this machine can reach it."""
        return self.uds is not None or is_loopback(self.host)

    @property
    def waived(self) -> frozenset[str]:
        return frozenset(filter(None, self.allow_weaker_isolation.split(",")))

    @property
    def allowance(self) -> PackageLimits:
        return PackageLimits(
            quota=Quota(self.max_install_bytes, self.max_install_files),
            seconds=self.max_install_seconds,
            max_concurrent=self.max_installs,
            max_queued=self.install_queue,
            cache_bytes=self.max_packages_bytes,
        )

    def check(self) -> None:
        """Refuse what would be unsafe or cannot work."""
        if self.mode != "python":
            message = f"SANDBOX_MODE={self.mode} is not there yet; use python"
            raise Refused(message)
        if not self.local and not self.token:
            message = f"listening on {self.host} needs a token: set SANDBOX_TOKEN, or listen on 127.0.0.1"
            raise Refused(message)
        if not 0 <= self.port <= _LAST_PORT:
            raise Refused(
                f"SANDBOX_PORT={self.port} is no port: choose one up to {_LAST_PORT}, or 0 for any that is free"
            )
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not least <= value < math.inf:
                raise Refused(f"SANDBOX_{name.upper()}={value} makes no sense: it must be at least {least}")
        try:
            split_path(self.output_dir)
        except BadPath as error:
            message = "a directory of the container's own, below its working directory"
            raise Refused(f"SANDBOX_OUTPUT_DIR names {message}: {error}") from error


def is_loopback(name: str) -> bool:
    """A name or an address (without brackets) that means this machine, whoever is asked."""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def from_environment(environment: Mapping[str, str], **given: object) -> SandboxSettings:
    """Settings from `SANDBOX_*`, with what is given and not None on top."""
    values: dict[str, Any] = {}
    for field in fields(SandboxSettings):
        name = f"SANDBOX_{field.name.upper()}"
        if environment.get(name):
            values[field.name] = _parsed(name, environment[name], field.default)
    values |= {name: value for name, value in given.items() if value is not None}
    return SandboxSettings(**values)


def _parsed(name: str, text: str, default: object) -> object:
    try:
        match default:
            case bool():
                return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
            case int() | float():
                return type(default)(text)
            case Path():
                return Path(text)
            case _:
                return text
    except (ValueError, KeyError):
        message = f"{name}={text!r} must be {'true or false' if isinstance(default, bool) else 'a number'}"
        raise Refused(message) from None
