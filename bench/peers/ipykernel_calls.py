"""Peer of the sandbox: a Jupyter kernel, driven by jupyter_client as by a notebook server. No isolation."""

from __future__ import annotations

import io
import json
import os
import tarfile
import tempfile
from pathlib import Path
from time import perf_counter
from uuid import uuid4

from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager

STARTS, CALLS, IMAGES = 5, 200, 10
IMPORTS = "import numpy, pandas, matplotlib.pyplot as plt\nprint(1)"
PLOT = "plt.plot([1, 2, 3]); plt.show()"
LARGE, SMALL_FILES = 100 << 20, 1_000
KERNEL_CODE = """
import comm, io, os, tarfile
os.chdir({folder!r})

def take_large(channel, opening):
    with open('large', 'wb') as file: file.write(opening['buffers'][0])

def take_small(channel, opening):
    tarfile.open(fileobj=io.BytesIO(opening['buffers'][0]), mode='r|').extractall('.', filter='data')

def give_large():
    comm.create_comm(target_name='given', buffers=[open('large', 'rb').read()])

def give_small():
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode='w|') as tar: tar.add('small')
    comm.create_comm(target_name='given', buffers=[packed.getvalue()])

for name, take in (('large', take_large), ('small', take_small)):
    get_ipython().kernel.comm_manager.register_target(name, take)
"""


def until_idle(client: BlockingKernelClient, code: str) -> list[str]:
    """Run code, and return the types of the messages."""
    message_id = client.execute(code)
    kinds: list[str] = []
    while True:
        message = client.get_iopub_msg(timeout=60)
        if message["parent_header"].get("msg_id") != message_id:
            continue
        kinds.append(message["msg_type"])
        if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            client.get_shell_msg(timeout=60)
            return kinds


def start() -> tuple[KernelManager, BlockingKernelClient]:
    """Start a kernel and wait until it answers."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    return manager, client


def timed(client: BlockingKernelClient, code: str, times: int) -> list[float]:
    """Durations of several calls, in seconds."""
    taken = []
    for _ in range(times):
        start_time = perf_counter()
        until_idle(client, code)
        taken.append(perf_counter() - start_time)
    return taken


def files(client: BlockingKernelClient) -> dict[str, list[float]]:
    """File transfer as binary message attachments, as widgets do: a kernel has no other file transfer."""
    large, small = os.urandom(1 << 20) * (LARGE >> 20), packed()
    taken: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        attached(client, client.execute(KERNEL_CODE.format(folder=folder)))
        for name, data in (("large", large), ("small", small)):
            for _ in range(3):
                start_time = perf_counter()
                opening = client.session.msg("comm_open", {"comm_id": uuid4().hex, "target_name": name, "data": {}})
                client.session.send(client.shell_channel.socket, opening, buffers=[data])
                attached(client, opening["header"]["msg_id"])
                taken.setdefault(f"{name} in", []).append(perf_counter() - start_time)
            for _ in range(3):
                start_time = perf_counter()
                size = attached(client, client.execute(f"give_{name}()"))
                taken.setdefault(f"{name} out", []).append(perf_counter() - start_time)
                if size < len(data) - tarfile.RECORDSIZE:
                    raise RuntimeError(f"{name}: {size} bytes returned")
    return taken


def packed() -> bytes:
    """A tar of the small files."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for i in range(SMALL_FILES):
            member = tarfile.TarInfo(f"small/{i}.txt")
            member.size = 1_000
            tar.addfile(member, io.BytesIO(b"x" * 1_000))
    return archive.getvalue()


def attached(client: BlockingKernelClient, message_id: str) -> int:
    """Wait until the call ends, and return the number of attached bytes."""
    size = 0
    while True:
        message = client.get_iopub_msg(timeout=60)
        if message["parent_header"].get("msg_id") != message_id:
            continue
        if message["msg_type"] == "error":
            raise RuntimeError(message["content"]["evalue"])
        size += sum(map(len, message["buffers"]))
        if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            return size


def own_megabytes(pid: int) -> float:
    """Proportional set size in MB."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    return int(text.partition("\nPss:")[2].split()[0]) / 1024


def main() -> None:
    """Run the measurements and print them as JSON."""
    started: list[float] = []
    for left in reversed(range(STARTS)):
        start_time = perf_counter()
        manager, client = start()
        until_idle(client, IMPORTS)
        started.append(perf_counter() - start_time)
        if left:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
    until_idle(client, "%matplotlib inline")
    memory = own_megabytes(manager.provisioner.pid)
    warm = timed(client, "1 + 1", CALLS)
    if "display_data" not in until_idle(client, PLOT):
        raise RuntimeError("no image returned")
    images = timed(client, PLOT, IMAGES)
    transfers = files(client)
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    print(json.dumps({"start": started, "warm": warm, "image": images, "memory": memory, **transfers}))


if __name__ == "__main__":
    main()
