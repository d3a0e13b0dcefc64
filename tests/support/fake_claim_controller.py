"""Fake agent-sandbox controller: adopts the SandboxClaims of one namespace on a real Kubernetes API server.

Every pod is a server on a loopback address of its own, which serves one claim and ends with it. What happens to a claim
depends on its pool:

    POOL          a pod with `antwort sandbox`, in one status write, under another name than the claim's
    SMALL_POOL    the same without the scientific stack, which starts faster
    BASE_POOL     a pod that speaks only the base protocol, `/health` and `/execute`
    EMPTY_POOL    as SMALL_POOL, when `refilled` is set; until then there is no warm pod
    UNKNOWN_POOL  the terminal reason WarmPoolNotFound
    MANUAL_POOL   nothing: the test writes the status
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol

import httpx2
from fake_base_sandbox import FakeBaseSandbox, base_sandbox

from antwort.tools.builtins.codeinterpreter.kubernetes.api import ApiRefused, KubernetesApi

ROOT = Path(__file__).parents[2]
POOL, SMALL_POOL, BASE_POOL = "python", "small", "base"
EMPTY_POOL, UNKNOWN_POOL, MANUAL_POOL = "empty", "unknown", "manual"
ENDED = "the pod has ended"

_MAX_STARTS = 4  # more at once would only be slower
_numbers = itertools.count(1)


class Pod(Protocol):
    """A server at its address."""

    ip: str

    async def wait(self) -> None:
        """Wait until it has ended by itself."""
        ...

    async def kill(self) -> None: ...


class SandboxPod:
    """An `antwort sandbox` process for a single use."""

    def __init__(self, ip: str, process: asyncio.subprocess.Process, disk: Path) -> None:
        self.ip = ip
        self.process = process
        self._disk = disk

    @classmethod
    async def start(cls, port: int, directory: Path, settings: dict[str, str]) -> SandboxPod:
        ip = next_address()
        disk = directory / ip
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT / "src"),
            "SANDBOX_STATE": str(disk),
            "SANDBOX_SINGLE_TENANT": "true",
            **settings,
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "antwort", "sandbox", "--host", ip, "--port", str(port)),
            env=environment,
            cwd=directory,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        pod = cls(ip, process, disk)
        try:
            async with asyncio.timeout(120), httpx2.AsyncClient(trust_env=False) as client:
                while True:
                    assert process.returncode is None, "the sandbox server does not start"
                    with suppress(httpx2.TransportError):
                        (await client.get(f"http://{ip}:{port}/health")).raise_for_status()
                        return pod
                    await asyncio.sleep(0.02)
        except BaseException:
            await pod.kill()
            raise

    async def wait(self) -> None:
        await self.process.wait()

    async def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        transport: Any = self.process._transport  # pyright: ignore[reportAttributeAccessIssue] - it has no close()
        transport.close()  # its own end needs the event loop once more, which may be closed before
        await asyncio.to_thread(shutil.rmtree, self._disk, ignore_errors=True)


class BasePod:
    """A server of the base protocol, in threads of this process."""

    def __init__(self, ip: str, server: FakeBaseSandbox, stack: ExitStack) -> None:
        self.ip = ip
        self.server = server
        self._stack = stack
        self._ended = asyncio.Event()

    def break_on_execution(self) -> None:
        """End with the first execution, instead of running it."""
        loop = asyncio.get_running_loop()
        self.server.on_execute = lambda: loop.call_soon_threadsafe(self._ended.set) and None

    @classmethod
    def start(cls, port: int) -> BasePod:
        ip, stack = next_address(), ExitStack()
        return cls(ip, stack.enter_context(base_sandbox((ip, port))), stack)

    async def wait(self) -> None:
        await self._ended.wait()

    async def kill(self) -> None:
        await asyncio.to_thread(self._stack.close)


def next_address() -> str:
    """A loopback address that no other pod has."""
    number = next(_numbers)
    return f"127.{77 + os.getpid() % 100}.{number // 250}.{number % 250 + 1}"


class ClaimController:
    """Watches the claims of a namespace. `pods` are the running ones, by the name of their claim.

    `settings` are `SANDBOX_*` variables of the pods, and `shows_address` is False for an API without pod addresses.
    `served` are the claims of which each pod was, in the order of their adoption.
    """

    def __init__(
        self, api: KubernetesApi, namespace: str, port: int, directory: Path, settings: dict[str, str] | None = None
    ) -> None:
        self.path = f"/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/{namespace}/sandboxclaims"
        self.pods: dict[str, Pod] = {}
        self.served: list[tuple[str, Pod]] = []
        self.refilled = asyncio.Event()
        self.shows_address = True
        self.breaks = False
        """New pods of BASE_POOL end when they should run code."""
        self._api = api
        self._port = port
        self._directory = directory
        self._settings = settings or {}
        self._starts = asyncio.Semaphore(_MAX_STARTS)
        self._adoptions: dict[str, asyncio.Task[None]] = {}
        self._watching = asyncio.create_task(self._watch())

    async def aclose(self) -> None:
        tasks = [self._watching, *self._adoptions.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(pod.kill() for pod in self.pods.values()))

    async def claims(self) -> list[dict[str, Any]]:
        """The claims that exist."""
        return json.loads(await self._api.request("GET", self.path))["items"]

    async def wait_for(self, condition: Callable[[list[dict[str, Any]]], object]) -> None:
        """Poll the claims until they meet the condition."""
        async with asyncio.timeout(30):
            while not condition(await self.claims()):  # noqa: ASYNC110 - the state is that of another process
                await asyncio.sleep(0.02)

    async def delete(self, name: str) -> None:
        """Delete a claim, as an administrator might."""
        await self._api.request("DELETE", f"{self.path}/{name}")

    async def refill(self) -> None:
        """Give pods to the claims of EMPTY_POOL."""
        self.refilled.set()

    def stop_reporting(self, name: str) -> None:
        """Do not report the end of a pod any more, as for a node that is cut off."""
        self._adoptions[name].cancel()

    async def kill_pod(self, name: str) -> None:
        """Kill the pod of a claim; its status says so when this returns, unless the claim was deleted meanwhile."""
        await self.pods[name].kill()
        with suppress(ApiRefused):
            await self.write_status(name, "False", "PodFailed", ENDED)

    async def write_status(self, name: str, ready: str, reason: str, message: str, **status: object) -> None:
        condition = {
            "type": "Ready",
            "status": ready,
            "reason": reason,
            "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        body = {"status": {"conditions": [condition], **status}}
        content_type = "application/merge-patch+json"
        await self._api.request("PATCH", f"{self.path}/{name}/status", body=body, content_type=content_type)

    async def _watch(self) -> None:
        """List and watch until cancelled."""
        version = "0"
        while True:
            with suppress(httpx2.TransportError, httpx2.HTTPStatusError):
                params = {"watch": "true", "resourceVersion": version}
                async with self._api._client.stream("GET", self.path, params=params, timeout=60) as reply:
                    reply.raise_for_status()
                    async for line in reply.aiter_lines():
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            version = "0"
                            break
                        version = event["object"]["metadata"]["resourceVersion"]
                        await self._handle(event["type"], event["object"])
            await asyncio.sleep(0.02)

    async def _handle(self, kind: str, claim: dict[str, Any]) -> None:
        name = claim["metadata"]["name"]
        if kind == "DELETED":
            if (adoption := self._adoptions.pop(name, None)) is not None:
                adoption.cancel()
                await asyncio.gather(adoption, return_exceptions=True)
            if (pod := self.pods.pop(name, None)) is not None:
                await pod.kill()
        elif name not in self._adoptions:
            self._adoptions[name] = asyncio.create_task(self._adopt(name, claim["spec"]["warmPoolRef"]["name"]))

    async def _adopt(self, name: str, pool: str) -> None:
        if pool == MANUAL_POOL:
            return
        if pool == UNKNOWN_POOL:
            await self.write_status(name, "False", "WarmPoolNotFound", f"no SandboxWarmPool {pool!r}")
            return
        if pool == EMPTY_POOL:
            await self.write_status(name, "False", "SandboxMissing", "the pool has no warm pod")
            await self.refilled.wait()
        pod = self.pods[name] = await self._start(pool)
        self.served.append((name, pod))
        sandbox: dict[str, Any] = {"name": sandbox_name(pool, pod)}
        if self.shows_address:
            sandbox["podIPs"] = [pod.ip]
        await self.write_status(name, "True", "DependenciesReady", "the pod is ready", sandbox=sandbox)
        await pod.wait()
        with suppress(ApiRefused):  # the claim was deleted meanwhile
            await self.write_status(name, "False", "PodFailed", ENDED)

    async def _start(self, pool: str) -> Pod:
        if pool == BASE_POOL:
            pod = BasePod.start(self._port)
            if self.breaks:
                pod.break_on_execution()
            return pod
        modules = {} if pool == POOL else {"SANDBOX_MODULES": "json"}
        async with self._starts:
            return await SandboxPod.start(self._port, self._directory, modules | self._settings)


def sandbox_name(pool: str, pod: Pod) -> str:
    """The name of the Sandbox of a pod."""
    return f"{pool}-{pod.ip.replace('.', '-')}"
