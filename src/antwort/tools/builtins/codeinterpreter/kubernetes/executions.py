"""Executions in pods that have no sessions: every execution claims a pod and releases it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx2

from antwort.containers.sandboxes.port import IncompleteReply, SandboxConnectError, SandboxUnavailable
from antwort.tools.builtins.codeinterpreter.kubernetes.pods import ConnectedPod

AcquirePod = Callable[[], Awaitable[ConnectedPod]]
ReleasePod = Callable[[ConnectedPod], Awaitable[None]]


class ClaimedExecutions:
    """The `SandboxRequests` of a `OneShotSandbox`: each request is sent to a pod of its own."""

    def __init__(self, acquire: AcquirePod, release: ReleasePod) -> None:
        self._acquire = acquire
        self._release = release

    @asynccontextmanager
    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - of the reply: the pod is acquired before it begins
    ) -> AsyncGenerator[httpx2.Response]:
        pod = await self._acquire()
        try:
            async with pod.server.request(method, path, body=body, timeout=timeout) as reply:
                yield reply
        except IncompleteReply as error:
            raise SandboxUnavailable(await self._explain(pod, error)) from error
        finally:
            await self._release(pod)

    async def _explain(self, pod: ConnectedPod, error: IncompleteReply) -> str:
        reason = await pod.server.loss_reason()
        if reason is not None:
            return f"The pod of this execution was lost: {reason}"
        begun = "The code was not run." if isinstance(error, SandboxConnectError) else "The code may have been run."
        return f"The pod of this execution does not answer: {error} {begun}"
