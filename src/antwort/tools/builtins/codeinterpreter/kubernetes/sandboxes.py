"""Sandboxes in claimed pods: the `Sandboxes` port on SandboxClaims. A pod is used for one sandbox, then deleted.

A pod with sessions is claimed for the life of its sandbox. Where the pods of the pool have only the base protocol, a
sandbox is a `OneShotSandbox`, and each of its executions has a claim of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Final

from antwort.containers.sandboxes.one_shot import OneShotSandbox
from antwort.containers.sandboxes.port import Sandbox, SandboxUnavailable
from antwort.tools.builtins.codeinterpreter.kubernetes.api import KubernetesError
from antwort.tools.builtins.codeinterpreter.kubernetes.claims import Claims
from antwort.tools.builtins.codeinterpreter.kubernetes.executions import ClaimedExecutions
from antwort.tools.builtins.codeinterpreter.kubernetes.instances import Instance
from antwort.tools.builtins.codeinterpreter.kubernetes.pods import ConnectedPod, PodConnector

_logger = logging.getLogger(__name__)

_RENEWALS_PER_LIFETIME: Final = 6
_MAX_RENEWALS: Final = 16
_SWEEP_RETRY_SECONDS: Final = 5.0


class KubernetesSandboxes:
    """`Sandboxes` in pods of a warm pool."""

    def __init__(self, claims: Claims, pods: PodConnector, instance: Instance | None = None) -> None:
        """`instance` is closed with the sandboxes."""
        self._claims = claims
        self._instance = instance
        self._pods = pods
        self._held: set[ConnectedPod] = set()
        """The pods whose claims are renewed."""
        self._sessions: dict[Sandbox, ConnectedPod] = {}
        self._one_shot: set[OneShotSandbox] = set()
        self._has_sessions: bool | None = None
        """Whether the last pod had sessions."""
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closed = False

    async def start(self) -> None:
        """Delete the claims that an earlier process of this instance left.

        `SandboxUnavailable` if the API server does not answer; then it is tried again in the background.
        """
        self._start_renewals()
        try:
            await self._sweep_own()
        except KubernetesError as error:
            self._tasks.append(asyncio.create_task(self._retry_sweep()))
            raise SandboxUnavailable(str(error)) from error

    async def is_stateful(self) -> bool:
        return self._has_sessions is not False

    async def acquire(self, *, tenant: str, memory_limit: str, timeout: float) -> Sandbox:  # noqa: ASYNC109 - as the port has it
        deadline = asyncio.get_running_loop().time() + timeout
        if self._has_sessions is False:  # a pod is claimed with each execution
            self._check_open()
            return self._open_one_shot(timeout)
        pod = await self._acquire_pod(timeout)
        if not await pod.server.is_stateful():
            await self._release_pod(pod, wait=False)
            return self._open_one_shot(timeout)
        try:
            left = max(0.0, deadline - asyncio.get_running_loop().time())
            sandbox = await pod.server.acquire(tenant=tenant, memory_limit=memory_limit, timeout=left)
            self._check_open()  # it may have been closed meanwhile
        except BaseException:
            await self._release_pod(pod)
            raise
        self._sessions[sandbox] = pod
        return sandbox

    async def release(self, sandbox: Sandbox) -> None:
        pod = self._sessions.pop(sandbox, None)
        if pod is not None:
            await self._release_pod(pod)  # from here on the sandbox is lost
        if isinstance(sandbox, OneShotSandbox):
            self._one_shot.discard(sandbox)
            await sandbox.end()

    async def sweep(self, ended: Collection[str]) -> None:
        """Delete the claims of these instances, and claims that have expired."""
        try:
            deleted = await self._claims.sweep(ended)
        except KubernetesError as error:
            raise SandboxUnavailable(str(error)) from error
        if deleted:
            _logger.info("deleted %d SandboxClaims of ended replicas", deleted)

    async def aclose(self) -> None:
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        held = (*self._sessions, *self._one_shot)
        await asyncio.gather(*(self.release(sandbox) for sandbox in held), return_exceptions=True)
        await self._claims.aclose()
        if self._instance is not None:
            self._instance.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise SandboxUnavailable("The server is stopping.")

    def _open_one_shot(self, timeout: float) -> Sandbox:
        async def release(pod: ConnectedPod) -> None:
            await self._release_pod(pod, wait=False)  # the result of an execution does not wait for the deletion

        sandbox = OneShotSandbox(
            ClaimedExecutions(lambda: self._acquire_pod(timeout), release), capacity_timeout=timeout
        )
        self._one_shot.add(sandbox)
        return sandbox

    # ── pods ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _acquire_pod(self, timeout: float) -> ConnectedPod:  # noqa: ASYNC109 - the error names it
        """A pod that answers. If that fails or is cancelled, its claim is deleted."""
        deadline = asyncio.get_running_loop().time() + timeout
        self._check_open()
        claim = await self._claims.acquire(timeout)
        pod: ConnectedPod | None = None
        try:
            pod = await self._pods.connect(claim, deadline)
            self._has_sessions = await pod.server.is_stateful()
            self._check_open()
        except BaseException:
            await asyncio.gather(self._claims.discard(claim), *([] if pod is None else [pod.server.aclose()]))
            raise
        self._held.add(pod)
        self._start_renewals()
        return pod

    async def _release_pod(self, pod: ConnectedPod, *, wait: bool = True) -> None:
        """Delete the claim, and close the client; a pod that does not answer does not delay the deletion."""
        self._held.discard(pod)
        await asyncio.gather(self._claims.discard(pod.claim, wait=wait), pod.server.aclose())

    # ── background ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _sweep_own(self) -> None:
        if deleted := await self._claims.sweep_own():
            _logger.info("deleted %d SandboxClaims of an earlier process", deleted)

    async def _retry_sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_RETRY_SECONDS)
            try:
                await self._sweep_own()
            except KubernetesError as error:
                _logger.debug("the SandboxClaims of an earlier process cannot be deleted yet: %s", error)
            else:
                return

    def _start_renewals(self) -> None:
        if not self._tasks:
            self._tasks.append(asyncio.create_task(self._renew_claims()))

    async def _renew_claims(self) -> None:
        """Move the shutdown times, several at a time: an API server that hangs must not delay those of many claims."""
        slots = asyncio.Semaphore(_MAX_RENEWALS)
        while True:
            await asyncio.sleep(self._claims.lifetime / _RENEWALS_PER_LIFETIME)
            await asyncio.gather(*(self._renew(pod, slots) for pod in tuple(self._held)))

    async def _renew(self, pod: ConnectedPod, slots: asyncio.Semaphore) -> None:
        async with slots:
            try:
                await self._claims.renew(pod.claim)
            except KubernetesError as error:  # the next operation on a sandbox whose claim is gone raises SandboxLost
                _logger.info("the SandboxClaim %s could not be renewed: %s", pod.claim.metadata.name, error)
            except Exception:  # code of credential plugins; without renewals every pod would end
                _logger.exception("the SandboxClaim %s could not be renewed", pod.claim.metadata.name)
