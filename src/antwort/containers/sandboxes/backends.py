"""Which place runs the code of containers, by what the configuration says. What cannot be is an error at start.

Without a word in the configuration it is this machine's jail, if this machine has one; if
not, no code is run here, and the server says why. Who asks for it in so many words
(`enabled: true`) is told at once that it cannot be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from antwort.config import CodeInterpreterSettings, ConfigError
from antwort.containers.sandboxes.client import SandboxServer, WrongToken
from antwort.containers.sandboxes.local import JailUnavailable, LocalSandboxes
from antwort.containers.sandboxes.port import Sandboxes, SandboxTrouble
from antwort.containers.sandboxes.remote import RemoteSandboxes

_WHERE = "providers.code_interpreter"
_HOW = (
    "`antwort doctor` says what this machine lacks. To run code here install the extra `sandbox`, "
    f"or name a sandbox server in {_WHERE}.sandbox_url."
)


class Backend(Struct, frozen=True):
    """Where code is run, or None where it is not; and what to tell of that."""

    sandboxes: Sandboxes | None
    told: str


async def open_backend(settings: CodeInterpreterSettings, state: Path, environment: Mapping[str, str]) -> Backend:
    """The place to run code, ready to be used.

    `state` is where a sandbox server of our own keeps what it installs.
    """
    if settings.enabled is False:
        return Backend(None, "off, as the configuration says")
    token = _token(settings, environment)
    if settings.sandbox_url is not None:
        return await _elsewhere(settings.sandbox_url, token)
    return await _here(settings, state, environment)


async def _here(settings: CodeInterpreterSettings, state: Path, environment: Mapping[str, str]) -> Backend:
    sandboxes = LocalSandboxes(
        state,
        max_output=settings.max_output_size,
        max_seconds=settings.execution_timeout,
        environment=environment,
    )
    try:
        await sandboxes.start()
    except JailUnavailable as error:
        await sandboxes.aclose()
        if settings.enabled:
            raise ConfigError(f"{_WHERE}.enabled: no code can be run on this machine: {error}. {_HOW}") from error
        return Backend(None, f"off: {error}. {_HOW}")
    return Backend(sandboxes, "in the jail of this machine")


async def _elsewhere(url: str, token: str | None) -> Backend:
    """A server that does not answer yet may do so later, and is no reason not to start; a wrong token is."""
    sandboxes = RemoteSandboxes(await asyncio.to_thread(SandboxServer, url, token=token))  # reads files
    try:
        await sandboxes.check()
    except WrongToken as error:
        await sandboxes.aclose()
        raise ConfigError(f"{_WHERE}.sandbox_token_env: {error}") from error
    except SandboxTrouble as trouble:
        return Backend(sandboxes, f"at {url}, which does not answer yet: {trouble}")
    return Backend(sandboxes, f"at {url}")


def _token(settings: CodeInterpreterSettings, environment: Mapping[str, str]) -> str | None:
    if settings.sandbox_token_env is None:
        return None
    if settings.sandbox_url is None:
        raise ConfigError(f"{_WHERE}.sandbox_token_env: there is no `sandbox_url` that it could be for.")
    token = environment.get(settings.sandbox_token_env)
    if not token:
        raise ConfigError(f"{_WHERE}.sandbox_token_env: the variable {settings.sandbox_token_env} is not set.")
    return token
