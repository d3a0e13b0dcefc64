"""Kubernetes API client: the few REST calls that claims need, authenticated as a kubeconfig or a service account says.

    KubernetesError
    ├── ApiUnreachable      no connection, no reply, or a 5xx or 429: worth a retry
    └── ApiRefused          any other error status; `status` is its code
        └── ApiNotServed    a 404 for the path itself, not for an object: an API server that has just been started, or
                            serves other versions since an upgrade
    KubeconfigError         no usable kubeconfig and no service account

lightkube reads the configuration: certificates, tokens, and tokens that are rotated in a file. Its own watch is not
used: it has no limit on silence, and a claim needs to know why a watch has ended.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final

import httpx2
import msgspec
import yaml
from lightkube import ConfigError as LightkubeConfigError
from lightkube import KubeConfig
from lightkube.config.kubeconfig import SERVICE_ACCOUNT, SingleConfig

from antwort.tools.builtins.codeinterpreter.kubernetes.certificates import CertificateTransport
from antwort.tools.builtins.codeinterpreter.kubernetes.credentials import api_auth

_TIMEOUT: Final = httpx2.Timeout(10.0)
_WATCH_SECONDS: Final = 300
_MAX_EVENT_BYTES: Final = 4 << 20  # etcd stores objects up to 1.5 MiB
_MAX_REPLY_BYTES: Final = 64 << 20  # a list of claims
_MAX_MESSAGE: Final = 500
_UNSUPPORTED: Final = ("proxy-url", "tls-server-name", "as", "as-uid", "as-groups", "as-user-extra")
"""Settings of a kubeconfig that lightkube ignores, so that requests would be sent elsewhere, or as another user."""

_SUCCESS: Final = range(200, 300)
_UNUSABLE: Final = (
    *(LightkubeConfigError, OSError, yaml.YAMLError, httpx2.InvalidURL),
    *(ValueError, KeyError, TypeError, AttributeError),  # a document of another shape
)


class KubeconfigError(Exception):
    """There is no usable kubeconfig and no service account. The message says why."""


class KubernetesError(Exception):
    """A call of the Kubernetes API failed."""


class ApiUnreachable(KubernetesError):
    """The API server did not answer, or cannot answer now. Worth a retry."""


class ApiRefused(KubernetesError):
    """The API server refused the call with an error status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ApiNotServed(ApiRefused):
    """The API server does not serve this path. That says nothing about the object."""

    def __init__(self, message: str) -> None:
        super().__init__(message, HTTPStatus.NOT_FOUND)


class KubernetesApi:
    """A client of one API server. `namespace` is that of the service account or of the kubeconfig's context."""

    def __init__(self, config: SingleConfig) -> None:
        self.namespace = config.namespace
        self._client = httpx2.AsyncClient(
            base_url=config.cluster.server,
            auth=api_auth(config),
            timeout=_TIMEOUT,
            transport=CertificateTransport(config),
        )

    @classmethod
    def from_kubeconfig(cls, path: str | None, *, service_account: str = SERVICE_ACCOUNT) -> KubernetesApi:
        """The client that a kubeconfig file describes; without one, the service account, then `KUBECONFIG`."""
        try:
            found = KubeConfig.from_env(service_account) if path is None else KubeConfig.from_file(path)
            config = found.get()
            if config is None:
                raise KubeconfigError("the kubeconfig has no current context")
            _check_supported(config)
            return cls(config)
        except _UNUSABLE as error:
            reason = f"no usable Kubernetes configuration: {error}"
            raise KubeconfigError(f"{reason}. Name a kubeconfig, or run in a pod with a service account.") from error

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        content_type: str = "application/json",
        params: Mapping[str, str] | None = None,
    ) -> bytes:
        """The body of the reply."""
        async with self._stream(method, path, body, content_type, params) as reply:
            return await _read(reply)

    async def watch(
        self, path: str, *, name: str, resource_version: str, silence: float
    ) -> AsyncGenerator[bytes, None]:
        """The events of one object, as JSON, until the server ends the watch.

        `ApiUnreachable` after `silence` seconds without data and for a broken connection.
        """
        params = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "fieldSelector": f"metadata.name={name}",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        timeout = httpx2.Timeout(10.0, read=silence)
        async with self._stream("GET", path, None, "application/json", params, timeout) as reply:
            rest = b""
            async for chunk in reply.aiter_bytes():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield line
                if len(rest) > _MAX_EVENT_BYTES:
                    raise ApiUnreachable("the Kubernetes API sent an event that is too long")

    async def aclose(self) -> None:
        await self._client.aclose()

    @asynccontextmanager
    async def _stream(
        self,
        method: str,
        path: str,
        body: object,
        content_type: str,
        params: Mapping[str, str] | None,
        timeout: httpx2.Timeout = _TIMEOUT,  # noqa: ASYNC109 - the HTTP client applies it to each wait
    ) -> AsyncGenerator[httpx2.Response]:
        content = None if body is None else msgspec.json.encode(body)
        headers = {"accept": "application/json", "accept-encoding": "identity", "content-type": content_type}
        try:
            async with self._client.stream(
                method, path, content=content, headers=headers, params=params, timeout=timeout
            ) as reply:
                if reply.status_code not in _SUCCESS:
                    raise _error(reply.status_code, await _read(reply))
                yield reply
        except (httpx2.TransportError, httpx2.StreamError) as error:
            raise ApiUnreachable(f"the Kubernetes API does not answer: {error}") from error
        except (LightkubeConfigError, OSError, UnicodeError) as error:  # a token file that cannot be read
            raise ApiUnreachable(f"no credentials for the Kubernetes API: {error}") from error


class _Entry(msgspec.Struct):
    """A cluster or a user of a kubeconfig."""

    name: str
    cluster: dict[str, object] = msgspec.field(default_factory=dict[str, object])
    user: dict[str, object] = msgspec.field(default_factory=dict[str, object])


class _Document(msgspec.Struct):
    """The settings of a kubeconfig that lightkube ignores."""

    clusters: list[_Entry] = msgspec.field(default_factory=list[_Entry])
    users: list[_Entry] = msgspec.field(default_factory=list[_Entry])


def _check_supported(config: SingleConfig) -> None:
    """`KubeconfigError` for settings that cannot be honoured, of the cluster and the user of the context."""
    if config.fname is None:  # a service account
        return
    document = msgspec.convert(yaml.safe_load(config.fname.expanduser().read_text(encoding="utf-8")), _Document)
    for kind, name, entries in (
        ("cluster", config.context.cluster, document.clusters),
        ("user", config.context.user, document.users),
    ):
        for entry in entries:
            found = [key for key in _UNSUPPORTED if entry.cluster.get(key) or entry.user.get(key)]
            if entry.name == name and found:
                raise KubeconfigError(
                    f"{config.fname}: {found[0]!r} of the {kind} {name!r} is not supported. Remove it."
                )


async def _read(reply: httpx2.Response) -> bytes:
    body = bytearray()
    async for chunk in reply.aiter_bytes():
        body += chunk
        if len(body) > _MAX_REPLY_BYTES:
            raise ApiUnreachable("the Kubernetes API sent a reply that is too long")
    return bytes(body)


class _StatusDetails(msgspec.Struct):
    name: str = ""


class _Status(msgspec.Struct):
    """The body of an error. One about an object names it in the details."""

    message: str | None = None
    details: _StatusDetails | None = None


def _error(status: int, body: bytes) -> KubernetesError:
    try:
        reply = msgspec.json.decode(body, type=_Status)
    except (msgspec.DecodeError, UnicodeError):
        reply = _Status(body.decode(errors="replace").strip())
    text = f"the Kubernetes API answered {status}: {str(reply.message)[:_MAX_MESSAGE]}"
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
        return ApiUnreachable(text)
    if status == HTTPStatus.NOT_FOUND and not (reply.details and reply.details.name):
        return ApiNotServed(text)
    return ApiRefused(text, status)
