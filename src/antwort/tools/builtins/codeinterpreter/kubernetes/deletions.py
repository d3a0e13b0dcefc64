"""Deletions of claims: each is repeated in the background until the API server has confirmed it.

A claim that is not deleted keeps its pod until its shutdown time. So a deletion outlives its caller, and an API server
that is restarted meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final

from antwort.tools.builtins.codeinterpreter.kubernetes.api import ApiNotServed, ApiRefused, KubernetesError

_logger = logging.getLogger(__name__)

_WAIT: Final = 5.0
_CLOSE_WAIT: Final = 10.0
_MIN_PAUSE: Final = 0.1
_MAX_PAUSE: Final = 30.0
_UNSEEN_SECONDS: Final = 65.0
"""The API server ends a request after 60 s: until then a creation without a reply may still be executed."""
_GONE: Final = (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)  # deleted, or replaced by one with another UID


class ClaimDeletions:
    """The running deletions. Each ends after `lifetime` seconds: then the controller has deleted the claim."""

    def __init__(self, delete: Callable[[str, object], Awaitable[object]], lifetime: float) -> None:
        """`delete` sends one request for a claim, by its name, with these `DeleteOptions`."""
        self._request = delete
        self._lifetime = lifetime
        self._running: set[asyncio.Task[None]] = set()

    def start(self, name: str, uid: str | None) -> asyncio.Task[None]:
        """Delete the claim with this UID. None: no reply to its creation was received, so it may appear later."""
        deletion = asyncio.create_task(self._delete(name, uid))
        self._running.add(deletion)
        deletion.add_done_callback(self._running.discard)
        return deletion

    async def wait(self, *deletions: asyncio.Task[None]) -> None:
        """Wait a few seconds for deletions. They continue after that, and if the caller is cancelled."""
        if deletions:
            await asyncio.wait(deletions, timeout=_WAIT)

    async def aclose(self) -> None:
        """Wait for all, at most ten seconds. What is not deleted then ends at its shutdown time."""
        running = tuple(self._running)
        if running:
            await asyncio.wait(running, timeout=_CLOSE_WAIT)
            for deletion in running:
                deletion.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _delete(self, name: str, uid: str | None) -> None:
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        loop = asyncio.get_running_loop()
        started, pause, reported = loop.time(), _MIN_PAUSE, ""
        while loop.time() - started < self._lifetime:
            try:
                await self._request(name, options)
            except KubernetesError as error:
                is_gone = (
                    isinstance(error, ApiRefused) and error.status in _GONE and not isinstance(error, ApiNotServed)
                )
                if is_gone and (uid is not None or loop.time() - started > _UNSEEN_SECONDS):
                    return
                if not is_gone and str(error) != reported:
                    reported = str(error)
                    _logger.warning("the SandboxClaim %s could not be deleted yet: %s", name, error)
            else:
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)
