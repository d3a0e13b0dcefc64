"""The same work in a Jupyter kernel, driven by jupyter_client as a notebook server would. No isolation."""

from __future__ import annotations

import json
from pathlib import Path
from time import perf_counter

from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager

STARTS, CALLS, IMAGES = 5, 200, 10
IMPORTS = "import numpy, pandas, matplotlib.pyplot as plt\nprint(1)"
PLOT = "plt.plot([1, 2, 3]); plt.show()"


def until_idle(client: BlockingKernelClient, code: str) -> list[str]:
    """Run the code; the types of what came back."""
    asked = client.execute(code)
    kinds: list[str] = []
    while True:
        message = client.get_iopub_msg(timeout=60)
        if message["parent_header"].get("msg_id") != asked:
            continue
        kinds.append(message["msg_type"])
        if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            client.get_shell_msg(timeout=60)
            return kinds


def start() -> tuple[KernelManager, BlockingKernelClient]:
    """A kernel that answers."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    return manager, client


def timed(client: BlockingKernelClient, code: str, times: int) -> list[float]:
    """Each of so many calls, in seconds."""
    taken = []
    for _ in range(times):
        begun = perf_counter()
        until_idle(client, code)
        taken.append(perf_counter() - begun)
    return taken


def own_megabytes(pid: int) -> float:
    """Its proportional share of memory."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    return int(text.partition("\nPss:")[2].split()[0]) / 1024


def main() -> None:
    """Measure, and print JSON."""
    started: list[float] = []
    for left in reversed(range(STARTS)):
        begun = perf_counter()
        manager, client = start()
        until_idle(client, IMPORTS)
        started.append(perf_counter() - begun)
        if left:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
    until_idle(client, "%matplotlib inline")
    memory = own_megabytes(manager.provisioner.pid)
    warm = timed(client, "1 + 1", CALLS)
    if "display_data" not in until_idle(client, PLOT):
        raise RuntimeError("no image came out")
    images = timed(client, PLOT, IMAGES)
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    print(json.dumps({"start": started, "warm": warm, "image": images, "memory": memory}))


if __name__ == "__main__":
    main()
