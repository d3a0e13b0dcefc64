"""Which place runs the code of containers, by what the configuration says. What cannot be is an error at start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from antwort.config import CodeInterpreterSettings, ConfigError
from antwort.containers.sandboxes.client import SandboxServer
from antwort.containers.sandboxes.local import LocalSandboxes
from antwort.containers.sandboxes.port import Sandboxes
from antwort.containers.sandboxes.remote import RemoteSandboxes

_WHERE = "providers.code_interpreter"


def open_sandboxes(settings: CodeInterpreterSettings, state: Path, environment: Mapping[str, str]) -> Sandboxes:
    """The place to run code. Nothing is started and nobody is asked before the first sandbox is needed.

    `state` is where a sandbox server of our own keeps what it installs.
    """
    if settings.sandbox_template is not None:
        raise ConfigError(
            f"{_WHERE}.sandbox_template: claims of Kubernetes are not part of this installation. Name a running "
            "sandbox server in `sandbox_url`, or leave both out for the jail of this machine."
        )
    token = _token(settings, environment)
    if settings.sandbox_url is not None:
        return RemoteSandboxes(SandboxServer(settings.sandbox_url, token=token))
    return LocalSandboxes(state, max_output=settings.max_output_size, environment=environment)


def _token(settings: CodeInterpreterSettings, environment: Mapping[str, str]) -> str | None:
    if settings.sandbox_token_env is None:
        return None
    if settings.sandbox_url is None:
        raise ConfigError(f"{_WHERE}.sandbox_token_env: there is no `sandbox_url` that it could be for.")
    token = environment.get(settings.sandbox_token_env)
    if not token:
        raise ConfigError(f"{_WHERE}.sandbox_token_env: the variable {settings.sandbox_token_env} is not set.")
    return token
