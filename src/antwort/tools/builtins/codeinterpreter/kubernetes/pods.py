"""Connections to claimed pods: from a ready claim to the client of the sandbox server in its pod.

A pod is reached at its address, else by the name of its service, else through the router of agent-sandbox. The router
selects the pod by headers; it uses `Authorization` itself, so the token of the pod is in a header of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from antwort.containers.sandboxes.port import IncompleteReply, SandboxUnavailable
from antwort.containers.sandboxes.remote import RemoteSandboxes
from antwort.net.sandbox_token import ROUTED_TOKEN_HEADER
from antwort.tools.builtins.codeinterpreter.kubernetes.api import KubernetesError
from antwort.tools.builtins.codeinterpreter.kubernetes.claims import Claims
from antwort.tools.builtins.codeinterpreter.kubernetes.resources import Claim

_MIN_PAUSE: Final = 0.1
_MAX_PAUSE: Final = 1.0
_DIRECT_TIMEOUT: Final = 2.0
"""Seconds for a pod to answer directly where there is a router, since a network policy drops packets silently."""


class SandboxRouter(Struct, frozen=True):
    """The router of agent-sandbox. `token` is its own, where it requires one."""

    url: str
    token: str | None = None


class ConnectedPod(Struct, frozen=True, eq=False):
    """A claim, and the client of the sandbox server in its pod."""

    claim: Claim
    server: RemoteSandboxes


class _Route(Struct, frozen=True):
    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    token: str | None = None
    is_router: bool = False


class PodConnector:
    """Connects to the pods of claims. `port` and `token` are those of the sandbox servers in the pods."""

    def __init__(self, claims: Claims, *, port: int, token: str | None, router: SandboxRouter | None = None) -> None:
        self._claims = claims
        self._port = port
        self._token = token
        self._router = router
        self._needs_router = False
        """The last pod could be reached only through the router, so it is tried first."""

    async def connect(self, claim: Claim, deadline: float) -> ConnectedPod:
        """Wait until the sandbox server in the pod answers, and check that no other container has used it.

        `SandboxUnavailable` if it does not answer in time, is no sandbox server, or is not the pod of the claim.
        """
        claim, routes = await self._routes(claim, deadline)
        servers = [(route, await self._open(claim, route)) for route in routes]
        unused = [server for _, server in servers]
        try:
            route, server = await self._first_answer(claim, servers, deadline)
            await self._confirm(claim, deadline)
            self._needs_router = route.is_router and len(routes) > 1
            unused.remove(server)
            return ConnectedPod(claim, server)
        finally:
            for one in unused:
                await one.aclose()

    async def _confirm(self, claim: Claim, deadline: float) -> None:
        """The claim must still have this pod: after its end another pod may get its address.

        While the claim cannot be read, that is unknown, and the pod is not used.
        """
        loop = asyncio.get_running_loop()
        pause = _MIN_PAUSE
        while True:
            try:
                return await self._claims.check_pod(claim)
            except KubernetesError as error:
                if loop.time() + pause >= deadline:
                    raise SandboxUnavailable(f"The pod answers, but its claim cannot be read: {error}") from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)

    async def _check_not_lost(self, claim: Claim) -> None:
        """Raise `SandboxUnavailable` where the pod is known to have ended."""
        if (reason := await self._claims.loss_reason(claim, may_flap=True)) is not None:
            raise SandboxUnavailable(reason)

    async def _first_answer(
        self, claim: Claim, servers: list[tuple[_Route, RemoteSandboxes]], deadline: float
    ) -> tuple[_Route, RemoteSandboxes]:
        """Ask the servers in turn until one of them answers; an answer that is wrong ends the attempt."""
        loop = asyncio.get_running_loop()
        pause = _MIN_PAUSE
        while True:
            problems: list[str] = []
            for route, server in servers:
                is_last = server is servers[-1][1]
                try:
                    async with asyncio.timeout_at(
                        deadline if is_last else min(deadline, loop.time() + _DIRECT_TIMEOUT)
                    ):
                        health = await server.check()
                except (IncompleteReply, TimeoutError) as error:
                    problems.append(f"{route.url}: {str(error) or 'timed out.'}")
                    continue
                if health.is_used:
                    raise SandboxUnavailable(f"The pod at {route.url} has been used by another container.")
                return route, server
            await self._check_not_lost(claim)
            if loop.time() + pause >= deadline:
                hint = "Does the network policy of the SandboxTemplate allow ingress from this server?"
                raise SandboxUnavailable(f"The pod is ready, but does not answer at {'; '.join(problems)} {hint}")
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)

    async def _routes(self, claim: Claim, deadline: float) -> tuple[Claim, list[_Route]]:
        """The claim, and the routes to its pod. Without a router it waits for an address."""
        loop = asyncio.get_running_loop()
        pause = _MIN_PAUSE
        routes = [] if self._router is None else [self._through(self._router, claim)]
        while True:
            try:
                url = f"http://{await self._claims.address(claim)}:{self._port}"
            except SandboxUnavailable:
                if routes:
                    return claim, routes
                if loop.time() + pause >= deadline:
                    raise
            else:
                direct = _Route(url, token=self._token)
                return claim, [*routes, direct] if self._needs_router else [direct, *routes]
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)
            claim = await self._claims.reload(claim)

    def _through(self, router: SandboxRouter, claim: Claim) -> _Route:
        headers = {
            "x-sandbox-id": claim.sandbox_name,
            "x-sandbox-namespace": self._claims.namespace,
            "x-sandbox-port": str(self._port),
        }
        if claim.pod_ip is not None:
            headers["x-sandbox-pod-ip"] = claim.pod_ip
        if self._token is not None:
            headers[ROUTED_TOKEN_HEADER] = f"Bearer {self._token}"
        return _Route(router.url, headers, router.token, is_router=True)

    async def _open(self, claim: Claim, route: _Route) -> RemoteSandboxes:
        async def explain_loss() -> str | None:
            return await self._claims.await_loss(claim)

        return await asyncio.to_thread(  # reads certificate files
            RemoteSandboxes,
            route.url,
            token=route.token,
            headers=route.headers,
            is_router=route.is_router,
            explain_loss=explain_loss,
        )
