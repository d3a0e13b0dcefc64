"""Selects the sandbox backend by the configuration; an impossible configuration is an error at start.

The default is the jail of this machine; if this machine has none, the code interpreter is
off and the startup banner says why. With `enabled: true` that is an error instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from antwort.config import CodeInterpreterSettings, ConfigError
from antwort.containers.sandboxes.local import LocalSandboxes
from antwort.containers.sandboxes.port import JailUnavailable, SandboxAuthError, SandboxError, Sandboxes
from antwort.containers.sandboxes.remote import RemoteSandboxes
from antwort.extras import install_command

_SECTION = "providers.code_interpreter"
_HINT = (
    "`antwort doctor` says what this machine lacks. To run code here install the extra `sandbox` "
    f"({install_command('sandbox')}), or name a sandbox server in {_SECTION}.sandbox_url."
)


class Backend(Struct, frozen=True):
    """The sandboxes, or None where the code interpreter is off; and a description for the startup banner."""

    sandboxes: Sandboxes | None
    description: str


async def open_backend(settings: CodeInterpreterSettings, state: Path, environment: Mapping[str, str]) -> Backend:
    """Open the backend. `state` is the directory where a local sandbox server keeps the packages that it installs."""
    if settings.enabled is False:
        return Backend(None, "off, as the configuration says")
    token = _token(settings, environment)
    if settings.sandbox_url is not None:
        return await _open_remote(settings.sandbox_url, token)
    return await _open_local(settings, state, environment)


async def _open_local(settings: CodeInterpreterSettings, state: Path, environment: Mapping[str, str]) -> Backend:
    sandboxes = LocalSandboxes(
        state, max_output=settings.max_output_size, max_seconds=settings.execution_timeout, environment=environment
    )
    try:
        await sandboxes.start()
    except JailUnavailable as error:
        await sandboxes.aclose()
        if settings.enabled:
            raise ConfigError(f"{_SECTION}.enabled: no code can be run on this machine: {error}. {_HINT}") from error
        return Backend(None, f"off: {error}. {_HINT}")
    return Backend(sandboxes, "in the jail of this machine")


async def _open_remote(url: str, token: str | None) -> Backend:
    """A server that does not answer yet is no error: it may be started later. A wrong token is one."""
    sandboxes = await asyncio.to_thread(RemoteSandboxes, url, token=token)  # reads certificate files
    try:
        await sandboxes.check()
    except SandboxAuthError as error:
        await sandboxes.aclose()
        raise ConfigError(f"{_SECTION}.sandbox_token_env: {error}") from error
    except SandboxError as error:
        return Backend(sandboxes, f"at {url}, which does not answer yet: {error}")
    return Backend(
        sandboxes, f"at {url}" if await sandboxes.is_stateful() else f"at {url}, a new process for each call"
    )


def _token(settings: CodeInterpreterSettings, environment: Mapping[str, str]) -> str | None:
    if settings.sandbox_token_env is None:
        return None
    if settings.sandbox_url is None:
        raise ConfigError(f"{_SECTION}.sandbox_token_env: there is no `sandbox_url` that it could be for.")
    token = environment.get(settings.sandbox_token_env)
    if not token:
        raise ConfigError(f"{_SECTION}.sandbox_token_env: the variable {settings.sandbox_token_env} is not set.")
    return token
