"""Dummy controller of a warm pool: adopts SandboxClaims of a namespace with pods that are ready before.

It runs as a process of its own, as a controller does: KUBECONFIG NAMESPACE PORT DIRECTORY on its command line. Every
pod is an `antwort sandbox` process on a loopback address, used for one claim, and replaced by a new one when the claim
is deleted. It prints one line of JSON per event; times are those of `time.perf_counter`, one clock for all processes:

    {"ready": 4}                                             so many pods are ready
    {"claim": NAME, "seen": TIME, "writing": TIME, "written": TIME}     event received; status request sent; answered
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx2
from lightkube import KubeConfig
from lightkube.config.client_adapter import user_auth, verify_cluster

PODS = 4
CLAIMS = "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/{}/sandboxclaims"
POLL_SECONDS = 0.02


def emit(**event: object) -> None:
    """Print an event."""
    print(json.dumps(event), flush=True)


class WarmPool:
    """Sandbox server processes that are ready."""

    def __init__(self, port: int, directory: Path) -> None:
        self._port = port
        self._directory = directory
        self._ready: asyncio.Queue[tuple[str, asyncio.subprocess.Process]] = asyncio.Queue()
        self._numbers = count(1)

    async def add(self) -> None:
        """Start a pod, and wait until its server answers and has prepared a container."""
        ip = f"127.78.0.{next(self._numbers) % 250 + 1}"
        environment = {
            "PATH": os.environ["PATH"],
            "SANDBOX_STATE": str(self._directory / ip),
            "SANDBOX_SINGLE_TENANT": "true",
        }
        command = (sys.executable, "-m", "antwort", "sandbox", "--host", ip, "--port", str(self._port), "--with-parent")
        null, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, env=environment, stdin=pipe, stdout=null, stderr=null)
        async with asyncio.timeout(60), httpx2.AsyncClient(trust_env=False) as client:
            while process.returncode is None:
                with suppress(httpx2.TransportError):
                    (await client.get(f"http://{ip}:{self._port}/health")).raise_for_status()
                    break
                await asyncio.sleep(POLL_SECONDS)
        self._ready.put_nowait((ip, process))
        emit(ready=self._ready.qsize())

    def take(self) -> tuple[str, asyncio.subprocess.Process]:
        """A pod that is ready; `QueueEmpty` if there is none, which is a mistake of the benchmark."""
        return self._ready.get_nowait()


class Controller:
    """Adopts claims until it is terminated."""

    def __init__(self, kubeconfig: str, namespace: str, pool: WarmPool) -> None:
        config = KubeConfig.from_file(kubeconfig).get()
        assert config is not None and config.user is not None  # noqa: S101, PT018 - the kubeconfig of this benchmark
        self._client = httpx2.AsyncClient(
            base_url=config.cluster.server,
            auth=user_auth(config.user),
            verify=verify_cluster(config.cluster, config.user, config.abs_file, trust_env=False),
            timeout=None,
        )
        self._path = CLAIMS.format(namespace)
        self._pool = pool
        self._adopted: dict[str, asyncio.subprocess.Process] = {}

    async def run(self) -> None:
        """Watch the claims. The watch starts before the pool is filled, so it sees all."""
        params = {"watch": "true", "resourceVersion": "0"}
        async with asyncio.TaskGroup() as tasks, self._client.stream("GET", self._path, params=params) as reply:
            for _ in range(PODS):
                tasks.create_task(self._pool.add())
            async for line in reply.raise_for_status().aiter_lines():
                seen, event = perf_counter(), json.loads(line)
                name = event["object"]["metadata"]["name"]
                if event["type"] == "ADDED":
                    tasks.create_task(self._adopt(name, event["object"], seen))
                elif event["type"] == "DELETED":
                    await stop(self._adopted.pop(name))
                    tasks.create_task(self._pool.add())

    async def _adopt(self, name: str, claim: dict[str, Any], seen: float) -> None:
        ip, self._adopted[name] = self._pool.take()
        condition = {
            "type": "Ready",
            "status": "True",
            "reason": "DependenciesReady",
            "message": "",
            "lastTransitionTime": claim["metadata"]["creationTimestamp"],
        }
        status = {"conditions": [condition], "sandbox": {"name": f"pod-{ip.replace('.', '-')}", "podIPs": [ip]}}
        headers = {"content-type": "application/merge-patch+json"}
        writing = perf_counter()
        body = json.dumps({"status": status})
        (await self._client.patch(f"{self._path}/{name}/status", content=body, headers=headers)).raise_for_status()
        emit(claim=name, seen=seen, writing=writing, written=perf_counter())


async def stop(process: asyncio.subprocess.Process) -> None:
    """Terminate a pod, and wait for its end: its sandbox ends with it."""
    with suppress(ProcessLookupError):
        process.terminate()
    await process.wait()


async def main(kubeconfig: str, namespace: str, port: str, directory: str) -> None:
    """Run until SIGTERM. The pods end with this process, because the pipe to their stdin is closed."""
    running = asyncio.create_task(Controller(kubeconfig, namespace, WarmPool(int(port), Path(directory))).run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    with suppress(asyncio.CancelledError):
        await running


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
