"""Settings of the sandbox server: `SANDBOX_*` environment variables, overridden by command line options."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from antwort.net.origin import is_loopback
from antwort.sandbox.errors import BadPath, Refused
from antwort.sandbox.files.quota import Quota
from antwort.sandbox.files.tree import split_path
from antwort.sandbox.limits import GIB
from antwort.sandbox.packages.manager import PackageLimits
from antwort.sandbox.pool.preload import SCIENTIFIC

_MAX_PORT: Final = 65_535
_MINIMUM: Final = {
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
    """Each field is read from the variable `SANDBOX_` plus its name in capitals."""

    host: str = "127.0.0.1"
    port: int = 8080
    uds: str | None = None
    """Path of a Unix socket to listen on instead of host and port."""
    mode: str = "python"
    max_concurrent: int = 3
    """Concurrent executions of `/execute`."""
    queue: int = 0
    """Requests of `/execute` that may wait for a slot; further ones get 429."""
    queue_seconds: float = 5.0
    max_sessions: int = 64
    max_sessions_per_tenant: int = 32
    """Less than `max_sessions`, so that one tenant cannot use all of them."""
    session_seconds: int = 1200
    """Idle time after which a session expires, unless the request sets another."""
    python_index: str | None = None
    output_dir: str = "output"
    token: str | None = None
    state: Path = Path(".antwort/sandbox")
    builds: bool = False
    """Also install source distributions, whose build code runs in the installer's jail."""
    max_install_bytes: int = GIB
    """Disk space of one package installation, while it runs and afterwards."""
    max_install_files: int = 100_000
    max_install_seconds: int = 300
    max_installs: int = 2
    """Concurrent installations."""
    install_queue: int = 32
    """Installations that may wait, granted round-robin across tenants; further ones get 429."""
    max_packages_bytes: int = 8 * GIB
    """Size limit of the package cache; above it the least recently used unleased packages are removed."""
    modules: str = ",".join(SCIENTIFIC)
    """Modules that zygotes import in advance."""
    max_body_bytes: int = 64 << 20
    """Size limit of JSON bodies; files and archives are limited by the container's disk quota."""
    max_timeout_seconds: int = 3600
    max_output_bytes: int = 1 << 20
    allow_weaker_isolation: str = ""
    """Comma-separated names of missing protections that the operator accepts."""
    single_tenant: bool = False
    """Serve one session or one `/execute` in all; namespaces may be missing, since the pod is the boundary."""

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.uds is not None or is_loopback(self.host)

    @property
    def waived(self) -> frozenset[str]:
        named = frozenset(filter(None, self.allow_weaker_isolation.split(",")))
        return named | {"namespaces"} if self.single_tenant else named

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
        """Raise `Refused` for settings that are unsafe or invalid."""
        if self.mode != "python":
            raise Refused(f"SANDBOX_MODE={self.mode} is not there yet; use python")
        if not self.is_local and not self.token:
            raise Refused(f"listening on {self.host} needs a token: set SANDBOX_TOKEN, or listen on 127.0.0.1")
        if not 0 <= self.port <= _MAX_PORT:
            raise Refused(f"SANDBOX_PORT={self.port} is not a port: choose one up to {_MAX_PORT}, or 0 for a free one")
        for name, minimum in _MINIMUM.items():
            value = getattr(self, name)
            if not minimum <= value < math.inf:
                raise Refused(f"SANDBOX_{name.upper()}={value} is invalid: it must be finite and at least {minimum}")
        try:
            split_path(self.output_dir)
        except BadPath as error:
            raise Refused(
                f"SANDBOX_OUTPUT_DIR must be a relative path below the container's working directory: {error}"
            ) from error


def from_environment(environment: Mapping[str, str], **overrides: object) -> SandboxSettings:
    """Settings from `SANDBOX_*` variables; `overrides` that are not None take precedence."""
    values: dict[str, Any] = {}
    for field in fields(SandboxSettings):
        name = f"SANDBOX_{field.name.upper()}"
        if environment.get(name):
            values[field.name] = _parse(name, environment[name], field.default)
    values |= {name: value for name, value in overrides.items() if value is not None}
    return SandboxSettings(**values)


def _parse(name: str, text: str, default: object) -> object:
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
        expected = "true or false" if isinstance(default, bool) else "a number"
        raise Refused(f"{name}={text!r} must be {expected}") from None
