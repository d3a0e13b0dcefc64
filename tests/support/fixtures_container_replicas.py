"""Several servers with sandboxes on one PostgreSQL, and clients that send each request to another one of them."""

from __future__ import annotations

import itertools
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import httpx2
import openai
from fixtures_code_interpreter import SCRIPT
from fixtures_container_server import ContainerServer
from fixtures_postgres import schema_url
from fixtures_server import ROOT, Server, run_server


class Replicas:
    """Servers on one store. Used in place of one `Server`: its clients alternate between them."""

    def __init__(self, servers: list[Server]) -> None:
        self.servers = servers
        self.sandbox = None
        self.keys: dict[str, str] = {}
        self._turn = itertools.cycle(servers)

    @property
    def url(self) -> str:
        """The URL of the next server."""
        return next(self._turn).url

    @property
    def directory(self) -> Path:
        return self.servers[0].directory

    def _alternate(self, request: Any) -> None:
        request.url = request.url.copy_with(port=httpx2.URL(self.url).port)

    def client(self, key: str = "none") -> Any:
        """An OpenAI SDK client, each of whose requests goes to the next server."""
        http = openai.DefaultHttpxClient(event_hooks={"request": [self._alternate]})
        return openai.OpenAI(
            base_url=f"{self.servers[0].url}/v1", api_key=key, max_retries=0, timeout=60, http_client=http
        )

    def http(self, **options: Any) -> httpx2.Client:
        """An HTTP client, each of whose requests goes to the next server."""
        hooks: dict[str, list[Callable[..., Any]]] = {"request": [self._alternate]}
        return httpx2.Client(base_url=self.servers[0].url, timeout=60, trust_env=False, event_hooks=hooks, **options)

    def read_log(self) -> str:
        """The logs of all servers, in the order of time."""
        lines = [line for server in self.servers for line in server.read_log().splitlines()]
        return "\n".join(sorted(lines, key=lambda line: json.loads(line)["timestamp"]))


def _set_clock(home: Path, seconds: float) -> Path:
    """A directory whose module is imported at the start of each Python with it in its path, and sets the clock."""
    folder = home / "clock"
    folder.mkdir()
    text = f"import time\nhost = time.time\ntime.time = lambda: host() + {seconds}\n"
    (folder / "sitecustomize.py").write_text(text, encoding="utf-8")
    return folder


@contextmanager
def run_container_replicas(
    postgres: str,
    directory: Path,
    config: dict[str, Any] | None = None,
    *,
    count: int = 2,
    clocks: Mapping[int, float] = MappingProxyType({}),
    **options: Any,
) -> Iterator[Replicas]:
    """Servers with jails of their own. `config` may have a key `without_url` with the numbers of those without one.

    `clocks` are seconds, by number, by which the clocks of servers are set forward.
    """
    given = dict(config or {})
    without_url = given.pop("without_url", ())
    url = schema_url(postgres, directory)
    with ExitStack() as stack:
        servers: list[Server] = []
        for number in range(count):
            home = directory / f"replica-{number}"
            (home / "scratch").mkdir(parents=True)
            port = _free_port()
            settings = {
                "providers": {"code_interpreter": {"enabled": True}},
                **given,
                "storage": {"url": url, "blobs": str(directory / "blobs")},
                "compaction": {"keys_file": str(directory / "sealing.json")},
                "server": {**given.get("server", {}), "port": port},
            }
            if number not in without_url:
                settings["server"]["replica_url"] = f"http://127.0.0.1:{port}"
            environment = {"TMPDIR": str(home / "scratch")}
            if seconds := clocks.get(number):
                environment["PYTHONPATH"] = os.pathsep.join((str(_set_clock(home, seconds)), str(ROOT / "src")))
            servers.append(
                stack.enter_context(run_server(home, settings, environment=environment, script=SCRIPT, **options))
            )
        yield Replicas(servers)


@contextmanager
def replicated_container_server(
    postgres: str, directory: Path, config: dict[str, Any] | None = None
) -> Iterator[ContainerServer]:
    """Replicas in place of the server of the container tests."""
    with run_container_replicas(postgres, directory, config) as replicas:
        yield ContainerServer(cast("Server", replicas))


def audit_lines(servers: list[Server], action: str, identifier: str) -> int:
    """How often an action on an object is in the audit logs of these servers."""
    lines = [line for server in servers for line in server.read_log().splitlines() if identifier in line]
    return sum(f'"{action}"' in line for line in lines)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
