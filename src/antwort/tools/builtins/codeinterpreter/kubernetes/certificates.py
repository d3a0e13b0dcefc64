"""Certificates of the Kubernetes API: the authority, and the client's own, read again when their files change.

Kubelets, cert-manager and others replace such files long before the old certificates expire. Requests that begin after
the change use new connections, because a connection keeps the certificates with which it was opened.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from typing import TypeAlias
from weakref import WeakSet

import httpx2
from lightkube.config.client_adapter import verify_cluster
from lightkube.config.kubeconfig import SingleConfig
from lightkube.config.models import User

from antwort.net.http_transport import HttpTransport

_logger = logging.getLogger(__name__)

_Versions: TypeAlias = tuple[tuple[int, int, int] | None, ...]


class CertificateTransport(httpx2.AsyncBaseTransport):
    """A transport with the certificates that a kubeconfig or a service account names. Reads them, and may raise."""

    def __init__(self, config: SingleConfig) -> None:
        user = config.user or User()
        named = (config.cluster.certificate_auth, user.client_cert, user.client_key)
        self._config = config
        self._files = [config.abs_file(name) for name in named if name]
        self._versions: _Versions = self._current_versions()
        self._transport = HttpTransport(ssl_context=self._context())
        self._earlier: WeakSet[HttpTransport] = WeakSet()
        """Those that are still used by requests which have begun before a change, such as watches."""
        self._lock = asyncio.Lock()
        self._reported = ""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self._files:
            async with self._lock:
                await self._reload()
        return await self._transport.handle_async_request(request)

    async def aclose(self) -> None:
        for transport in (self._transport, *self._earlier):
            await transport.aclose()

    async def _reload(self) -> None:
        """Read the files again if one of them has changed. Until they can be used, the earlier certificates are."""
        versions = await asyncio.to_thread(self._current_versions)
        if versions == self._versions:
            return
        try:
            context = await asyncio.to_thread(self._context)
        except OSError as error:  # also of ssl: a certificate was replaced before its key, or is not complete yet
            if str(error) != self._reported:
                self._reported = str(error)
                _logger.warning("changed certificates of the Kubernetes API cannot be used: %s", error)
            return
        self._earlier.add(self._transport)
        self._transport, self._versions, self._reported = HttpTransport(ssl_context=context), versions, ""

    def _context(self) -> ssl.SSLContext:
        user = self._config.user or User()
        return verify_cluster(self._config.cluster, user, self._config.abs_file, trust_env=False)

    def _current_versions(self) -> _Versions:
        return tuple(_version(path) for path in self._files)


def _version(path: str | os.PathLike[str]) -> tuple[int, int, int] | None:
    """What differs after a file was replaced or written again; links, as those of mounted Secrets, are followed."""
    try:
        info = os.stat(path)  # noqa: PTH116 - lightkube's paths may be strings
    except OSError:
        return None
    return info.st_ino, info.st_mtime_ns, info.st_size
