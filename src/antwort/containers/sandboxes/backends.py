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
from antwort.extras import explain_missing, install_command

_SECTION = "providers.code_interpreter"
_HINT = (
    "`antwort doctor` says what this machine lacks. To run code here install the extra `sandbox` "
    f"({install_command('sandbox')}), or name a sandbox server in {_SECTION}.sandbox_url."
)


class Backend(Struct, frozen=True):
    """The sandboxes, or None where the code interpreter is off; and a description for the startup banner."""

    sandboxes: Sandboxes | None
    description: str


async def open_backend(
    settings: CodeInterpreterSettings, state: Path, environment: Mapping[str, str], replica: str | None = None
) -> Backend:
    """Open the backend. `state` is the directory where a local sandbox server keeps the packages that it installs.

    `replica` is the id of this process among several on one store, which label their claims with it.
    """
    if settings.enabled is False:
        return Backend(None, "off, as the configuration says")
    token = _token(settings, environment)
    if settings.sandbox_url is not None:
        return await _open_remote(settings.sandbox_url, token)
    if settings.sandbox_template is not None:
        return await _open_kubernetes(settings, settings.sandbox_template, state, token, environment, replica)
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


async def _open_kubernetes(
    settings: CodeInterpreterSettings,
    template: str,
    state: Path,
    token: str | None,
    environment: Mapping[str, str],
    replica: str | None,
) -> Backend:
    """An API server that does not answer yet is no error. A missing extra or an invalid kubeconfig is one."""
    try:
        from antwort.tools.builtins.codeinterpreter import kubernetes  # noqa: PLC0415 - needs an extra
    except ModuleNotFoundError as error:
        raise ConfigError(f"{_SECTION}.sandbox_template: {explain_missing(error, 'kubernetes')}") from error
    router_token = None
    if settings.sandbox_router_token_env is not None:
        router_token = _variable("sandbox_router_token_env", settings.sandbox_router_token_env, environment)
    try:
        api = await asyncio.to_thread(kubernetes.KubernetesApi.from_kubeconfig, settings.kubeconfig)  # reads files
    except kubernetes.KubeconfigError as error:
        raise ConfigError(
            f"{_SECTION}.{'kubeconfig' if settings.kubeconfig else 'sandbox_template'}: {error}"
        ) from error
    instance = None if replica is not None else await asyncio.to_thread(kubernetes.Instance, state)
    claims = kubernetes.Claims(
        api,
        namespace=settings.sandbox_namespace or api.namespace,
        template=template,
        warm_pool=settings.sandbox_warm_pool or template,
        instance=replica or ("" if instance is None else instance.name),
    )
    router = (
        None if settings.sandbox_router is None else kubernetes.SandboxRouter(settings.sandbox_router, router_token)
    )
    pods = kubernetes.PodConnector(claims, port=settings.sandbox_port, token=token, router=router)
    sandboxes = kubernetes.KubernetesSandboxes(claims, pods, instance)
    place = f"in pods of the warm pool {claims.pool}"
    try:
        await sandboxes.start()
    except SandboxError as error:
        return Backend(sandboxes, f"{place}, which cannot be claimed yet: {error}")
    return Backend(sandboxes, place)


def _token(settings: CodeInterpreterSettings, environment: Mapping[str, str]) -> str | None:
    if settings.sandbox_token_env is None:
        return None
    if settings.sandbox_url is None and settings.sandbox_template is None:
        reason = "there is no `sandbox_url` and no `sandbox_template` that it could be for"
        raise ConfigError(f"{_SECTION}.sandbox_token_env: {reason}.")
    return _variable("sandbox_token_env", settings.sandbox_token_env, environment)


def _variable(setting: str, name: str, environment: Mapping[str, str]) -> str:
    """The value of the environment variable that a setting names."""
    value = environment.get(name)
    if not value:
        raise ConfigError(f"{_SECTION}.{setting}: the variable {name} is not set.")
    return value
