"""Fixture: a sandbox server for a single use, in what the restricted security context of Kubernetes leaves it.

An ordinary user without capabilities, `no_new_privs`, no user namespaces, a read-only root; writable are `/tmp` and the
volume at `/mnt/data`. Bubblewrap plays the container runtime.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from waiting import wait_until

from antwort.sandbox.host.bubblewrap import find_bwrap
from antwort.testing.sandbox_protocol import Client

ROOT = Path(__file__).parents[2]
TOKEN = "the token of the restricted pod"
_WITHOUT_LANDLOCK = """
from antwort.sandbox.jail import landlock
landlock.abi = lambda: 0
from antwort.__main__ import main
main()
"""
SECRET = "a-secret-of-the-restricted-pod"


class RestrictedPod:
    """The pod: its client, and its server's process id inside."""

    def __init__(self, client: Client, process: subprocess.Popen[bytes], port: int) -> None:
        self.client = client
        self.process = process
        self.port = port


@contextmanager
def restricted_pod(
    directory: Path, *, has_volume: bool = True, has_landlock: bool = True, is_init: bool = False, **settings: str
) -> Iterator[RestrictedPod]:
    """A running pod. `has_volume`: an empty volume is mounted at `/mnt/data`.

    Without `has_landlock` the server finds none, as in gVisor, and that is waived. With `is_init` it is process 1 of
    its pid namespace, with `--with-parent` and the pipe `process.stdin`.
    """
    bwrap = find_bwrap()
    assert bwrap is not None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT / "src"),
        "SANDBOX_PORT": str(port),
        "SANDBOX_STATE": "/tmp/state",  # noqa: S108 - the pod's own
        "SANDBOX_SINGLE_TENANT": "true",
        "SANDBOX_TOKEN": TOKEN,
        "SECRET_OF_THE_POD": SECRET,
        **({} if has_landlock else {"SANDBOX_ALLOW_WEAKER_ISOLATION": "landlock"}),
        **{f"SANDBOX_{name.upper()}": value for name, value in settings.items()},
    }
    hidden = [path for path in (ROOT / "src", Path(sys.prefix)) if path.is_relative_to("/tmp")]  # noqa: S108 - the same
    command = [
        *(str(bwrap), "--unshare-user", "--unshare-pid", "--unshare-ipc", "--uid", "10001", "--gid", "10001"),
        *("--disable-userns", "--cap-drop", "ALL", "--die-with-parent", "--new-session", "--clearenv"),
        *("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/mnt"),  # noqa: S108 - the same
        *(["--tmpfs", "/mnt/data"] if has_volume else []),
        *(["--as-pid-1"] if is_init else []),
        *(word for path in hidden for word in ("--ro-bind", str(path), str(path))),
        *(word for name, value in environment.items() for word in ("--setenv", name, value)),
        *("--remount-ro", "/mnt", "--chdir", "/tmp", "--", sys.executable),  # noqa: S108 - the same
        *(("-m", "antwort", "sandbox") if has_landlock else ("-c", _WITHOUT_LANDLOCK, "sandbox")),
        *(["--with-parent"] if is_init else []),
    ]
    log = directory / "pod.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.PIPE if is_init else None, stdout=output, stderr=output)
    client = Client(f"http://127.0.0.1:{port}", TOKEN)

    def is_healthy() -> bool:
        if process.poll() is not None:
            text = log.read_text(encoding="utf-8")
            if "bwrap:" in text and "antwort" not in text:
                pytest.skip(f"bubblewrap cannot play the container runtime here: {text}")
            pytest.fail(text)
        with suppress(OSError):
            return client.call("GET", "/health").status == 200
        return False

    try:
        wait_until(is_healthy)
        yield RestrictedPod(client, process, port)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
