"""Several server processes on one PostgreSQL: the same storage, file contents and keys."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
from fixtures_postgres import schema_url
from fixtures_server import Server, create_key, run_server

SCRIPT = {
    "fragment": 5,
    "answers": [
        {"when": {"text": "forever"}, "reply": [{"text": "begun "}, {"delay": 600}, {"text": "ended"}]},
        {
            "when": {"text": "slowly"},
            "reply": [step for word in range(40) for step in ({"text": f"word{word} "}, {"delay": 0.25})],
        },
        {
            "when": {"text": "quickly"},
            "reply": [step for word in range(6) for step in ({"text": f"word{word} "}, {"delay": 0.2})],
        },
        {"reply": [{"text": "You said: <<text>>"}]},
    ],
}
SLOWLY = "".join(f"word{word} " for word in range(40))
QUICKLY = "".join(f"word{word} " for word in range(6))


def replica_config(url: str, directory: Path) -> dict:
    """The configuration of each replica, apart from its own directory."""
    return {"storage": {"url": url, "blobs": str(directory / "state" / "blobs")}}


@contextmanager
def run_replicas(server_url: str, directory: Path, count: int = 2, **config) -> Iterator[list[Server]]:
    """Context manager: running replicas; `server_url` is a PostgreSQL server."""
    common = replica_config(schema_url(server_url, directory), directory)
    with ExitStack() as stack:
        yield [
            stack.enter_context(run_server(directory / f"replica{number}", {**common, **config}, script=SCRIPT))
            for number in range(count)
        ]


def shared_key(directory: Path, name: str, *options: str) -> str:
    """An API key in the key file that all replicas use by default."""
    (directory / "state").mkdir(exist_ok=True)
    return create_key(directory / "state", name, *options)


def replica_id(server: Server) -> str:
    """The id of a replica, from its start screen."""
    found = re.search(r"^replica +(rep_\w+)", server.banner, re.MULTILINE)
    assert found is not None
    return found[1]


def owner_of_response(server_url: str, directory: Path, response_id: str) -> str:
    """The replica that a response belongs to, from the database."""
    with psycopg.connect(schema_url(server_url, directory)) as connection:
        row = connection.execute("SELECT replica FROM responses WHERE id = %s", (response_id,)).fetchone()
    assert row is not None
    return row[0]


def metric(server: Server, name: str, key: str = "none") -> float:
    """The sum of a metric over its labels."""
    with server.http(headers={"authorization": f"Bearer {key}"}) as http:
        lines = http.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if re.match(rf"{name}[ {{]", line))


@contextmanager
def stopped(server: Server) -> Iterator[None]:
    """Context manager: the server process is stopped by SIGSTOP, as on a host that is paused."""
    server.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)
