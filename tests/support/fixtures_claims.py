"""Fixtures: a cluster for a server process that claims its sandboxes: API server, namespace, controller and pods."""

from __future__ import annotations

import asyncio
import functools
import secrets
import tempfile
import threading
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, aclosing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from fake_claim_controller import ClaimController, Pod, SandboxPod
from fixtures_kubernetes import api_server, free_port, kubernetes_namespace
from session_end import SESSION
from waiting import wait_until

from antwort.tools.builtins.codeinterpreter.kubernetes.api import KubernetesApi

T = TypeVar("T")


@functools.cache
def shared_api_server() -> str:
    """The kubeconfig of an API server that ends with the tests; skips the test if there is none."""
    directory = SESSION.enter_context(tempfile.TemporaryDirectory())
    return SESSION.enter_context(api_server(Path(directory)))


class ClaimCluster:
    """A namespace and its controller, whose event loop runs in a thread."""

    def __init__(self, kubeconfig: str, directory: Path, pod_settings: dict[str, str] | None) -> None:
        self.kubeconfig = kubeconfig
        self.namespace = f"test-{secrets.token_hex(4)}"
        self.port = free_port()
        self._stack = AsyncExitStack()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.controller = self.call(self._open(directory, pod_settings))

    async def _open(self, directory: Path, pod_settings: dict[str, str] | None) -> ClaimController:
        self._api = await self._stack.enter_async_context(aclosing(KubernetesApi.from_kubeconfig(self.kubeconfig)))
        await self._stack.enter_async_context(kubernetes_namespace(self._api, self.namespace))
        return ClaimController(self._api, self.namespace, self.port, directory, pod_settings)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop of the controller."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    def settings(self, pool: str) -> dict[str, Any]:
        """The settings of a code interpreter that claims from this pool. A pod may start slowly on a busy machine."""
        return {
            "sandbox_template": "template",
            "sandbox_warm_pool": pool,
            "sandbox_namespace": self.namespace,
            "sandbox_port": self.port,
            "kubeconfig": self.kubeconfig,
            "claim_timeout": 120,
        }

    def claims(self) -> list[str]:
        """The names of the claims that exist."""
        return [claim["metadata"]["name"] for claim in self.call(self.controller.claims())]

    def pods(self) -> dict[str, Pod]:
        """The running pods, by the name of their claim."""
        return dict(self.controller.pods)

    def newest_pod(self) -> SandboxPod:
        """The pod that was started last, of those that are running."""
        pod = list(self.pods().values())[-1]
        assert isinstance(pod, SandboxPod)
        return pod

    def kill_pod(self) -> None:
        """Kill the newest pod; the status of its claim says so when this returns."""
        self.call(self.controller.kill_pod(list(self.pods())[-1]))

    def wait_until_empty(self) -> None:
        """Wait until there is no claim and no pod."""
        wait_until(lambda: not self.claims() and not self.pods(), timeout=60)

    def close(self) -> None:
        self.call(self.controller.aclose())
        self.call(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def claim_cluster(
    directory: Path, pod_settings: dict[str, str] | None = None, kubeconfig: str | None = None
) -> Iterator[ClaimCluster]:
    """A cluster without claims. `pod_settings` are the `SANDBOX_*` variables of its pods."""
    directory.mkdir(parents=True, exist_ok=True)
    cluster = ClaimCluster(kubeconfig or shared_api_server(), directory, pod_settings)
    try:
        yield cluster
    finally:
        cluster.close()
