"""A hundred Jupyter kernels started together, until each has the stack imported; none ends before all are there."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

from peers.ipykernel_calls import IMPORTS, start, until_idle

COUNT = 100


def crowd(count: int) -> float:
    """How long it takes, in seconds."""

    def one(_: int) -> tuple:
        manager, client = start()
        until_idle(client, IMPORTS)
        return manager, client

    with ThreadPoolExecutor(count) as threads:
        begun = perf_counter()
        running = list(threads.map(one, range(count)))
        took = perf_counter() - begun
        for manager, client in running:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
    return took


if __name__ == "__main__":
    print(json.dumps({"took": crowd(COUNT)}))
