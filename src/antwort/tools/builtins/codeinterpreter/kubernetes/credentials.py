"""Credentials of the Kubernetes API: bearer tokens, basic authentication, and credential programs (exec plugins).

A credential program is run by this module and not by lightkube: it supports `client.authentication.k8s.io/v1`, has a
time limit, and is run once for all requests that wait for a token.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Final

import httpx2
import msgspec
from lightkube import ConfigError as LightkubeConfigError
from lightkube.config.client_adapter import user_auth
from lightkube.config.kubeconfig import SingleConfig
from lightkube.config.models import User, UserExec

_EXEC_GROUP: Final = "client.authentication.k8s.io/"
_EXEC_VERSIONS: Final = ("v1", "v1beta1", "v1alpha1")
_EXEC_TIMEOUT: Final = 30.0
_EXPIRY_MARGIN: Final = timedelta(seconds=10)
_MAX_MESSAGE: Final = 500


class _ExecStatus(msgspec.Struct, rename="camel"):
    token: str = ""
    expiration_timestamp: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class _ExecCredential(msgspec.Struct):
    status: _ExecStatus = msgspec.field(default_factory=_ExecStatus)


def api_auth(config: SingleConfig) -> httpx2.Auth | None:
    """The authentication that a kubeconfig or a service account names; None for client certificates and for none."""
    user = config.user or User()
    if user.exec is not None and user.token is None and user.token_file is None:
        return ExecCredentials(user.exec, config.fname)
    if user.token_file is not None:
        user = msgspec.structs.replace(user, token_file=str(config.abs_file(user.token_file)))
    return user_auth(user)  # a token file is read again after a 401


class ExecCredentials(httpx2.Auth):
    """The token of a credential program, which is run again when the token has expired or is rejected."""

    def __init__(self, program: UserExec, kubeconfig: Path | None, *, timeout: float = _EXEC_TIMEOUT) -> None:
        group, _, version = program.apiVersion.rpartition("/")
        if f"{group}/" != _EXEC_GROUP or version not in _EXEC_VERSIONS:
            supported = ", ".join(_EXEC_GROUP + one for one in _EXEC_VERSIONS)
            raise LightkubeConfigError(f"exec: the apiVersion {program.apiVersion!r} is none of {supported}")
        self._program = program
        self._command = _resolve(program.command, kubeconfig)
        self._timeout = timeout
        self._lock = asyncio.Lock()
        self._credential = _ExecStatus()

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        token = await self._token(rejected=None)
        request.headers["Authorization"] = f"Bearer {token}"
        response = yield request
        if response.status_code == HTTPStatus.UNAUTHORIZED:
            request.headers["Authorization"] = f"Bearer {await self._token(rejected=token)}"
            yield request

    async def _token(self, rejected: str | None) -> str:
        """The current token, unless it is the rejected one or has expired; then a new one."""
        async with self._lock:
            known = self._credential
            until = known.expiration_timestamp
            has_expired = until is not None and until < datetime.now(UTC) + _EXPIRY_MARGIN
            if not known.token or known.token == rejected or has_expired:
                self._credential = await self._run()
            return self._credential.token

    async def _run(self) -> _ExecStatus:
        command = self._command
        given = {one.name: one.value for one in self._program.env or []}
        info = {"apiVersion": self._program.apiVersion, "kind": "ExecCredential", "spec": {"interactive": False}}
        environment = {"KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode(), **os.environ, **given}
        try:
            output = await self._output([command, *(self._program.args or [])], environment)
            status = msgspec.json.decode(output, type=_ExecCredential).status
        except TimeoutError as error:
            raise LightkubeConfigError(f"{command} has not ended within {self._timeout:g} s") from error
        except (OSError, msgspec.DecodeError) as error:
            raise LightkubeConfigError(f"{command}: {error}") from error
        if not status.token:
            raise LightkubeConfigError(f"{command} returned no token; client certificates are not supported")
        return status

    async def _output(self, command: list[str], environment: dict[str, str]) -> bytes:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(self._timeout):
                output, errors = await process.communicate()
        except BaseException:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        if process.returncode != 0:
            message = errors.decode(errors="replace").strip()[-_MAX_MESSAGE:]
            raise LightkubeConfigError(f"{command[0]} ended with {process.returncode}: {message}")
        return output


def _resolve(command: str, kubeconfig: Path | None) -> str:
    """The path of a program: relative to the kubeconfig if it has a slash, else found in `PATH`."""
    if "/" in command and kubeconfig is not None:
        return str(kubeconfig.parent / command)
    return shutil.which(command) or command
