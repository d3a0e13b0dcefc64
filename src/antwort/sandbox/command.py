"""`antwort sandbox` and `antwort doctor`: start the server, and say what this host protects from."""

from __future__ import annotations

import asyncio
import os
import resource
from typing import Final

import click
from rich.console import Console
from rich.table import Table

from . import host as hosts
from .errors import SandboxError
from .pool import Pool

_MOST_CONNECTIONS: Final = 1_000
_OPEN_FILES: Final = 16_384  # each connection takes one, each container eight
_SHUTDOWN_SECONDS: Final = 5


@click.command()
@click.option("--host", help="Address to listen on; anything but loopback needs SANDBOX_TOKEN.  [default: 127.0.0.1]")
@click.option("--port", type=int, help="[default: 8080, or SANDBOX_PORT]")
@click.option("--allow-weaker-isolation", metavar="NAMES", help="Run without these protections, separated by commas.")
def sandbox(host: str | None, port: int | None, allow_weaker_isolation: str | None) -> None:
    """Serve isolated Python over HTTP. Settings: SANDBOX_* in the environment."""
    import uvicorn  # noqa: PLC0415 - `antwort doctor` does not need a web server

    from .server import make_app  # noqa: PLC0415 - the same reason
    from .server.settings import from_environment  # noqa: PLC0415 - the same reason

    _make_room_for_files()
    try:
        settings = from_environment(os.environ, host=host, port=port, allow_weaker_isolation=allow_weaker_isolation)
        found = hosts.probe()
        app = make_app(settings, found)
        asyncio.run(_try(found))  # a probe can be wrong; a container that answers cannot
    except SandboxError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"antwort sandbox on http://{settings.host}:{settings.port} ({found.summary()})", err=True)
    uvicorn.run(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http="httptools",
        log_level="warning",
        limit_concurrency=_MOST_CONNECTIONS,
        server_header=False,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,  # a client that never reads must not keep us from stopping
    )


def _make_room_for_files() -> None:
    """The soft limit is 1,024 on most hosts, and asking for more is what it is soft for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@click.command()
def doctor() -> None:
    """Say which protections this host gives, and try them on a real container."""
    found = hosts.probe()
    table = Table("protection", "here", "what it is for", title="Isolation of untrusted code on this host")
    for row in found.lines():
        table.add_row(*row)
    console = Console()
    console.print(table)
    if found.missing:
        console.print(f"Missing: {', '.join(sorted(found.missing))}. Untrusted code is refused unless that is waived.")
        raise SystemExit(1)
    try:
        answer = asyncio.run(_try(found))
    except SandboxError as error:
        raise click.ClickException(f"the walls are there, but {error}") from error
    console.print(f"A container was started and answered: {answer}")


async def _try(found: hosts.Host) -> str:
    async with Pool(found, modules=(), spares=False) as pool:
        container = await pool.create()
        try:
            outcome = await container.execute("import platform; platform.python_version()", timeout=10)
        finally:
            await container.end("the check is over")
    return outcome.echo or outcome.stderr or outcome.reason or "nothing"
