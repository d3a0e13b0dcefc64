"""`antwort sandbox` and `antwort doctor`: start the server, and say what this host protects from."""

from __future__ import annotations

import asyncio
import os
import resource
from dataclasses import replace
from typing import Final

import click
from rich.console import Console
from rich.table import Table

from antwort.sandbox.errors import SandboxError
from antwort.sandbox.host import parent
from antwort.sandbox.host import probe as hosts
from antwort.sandbox.pool.pool import Pool

_MOST_CONNECTIONS: Final = 1_000
_OPEN_FILES: Final = 16_384  # each connection takes one, each container eight
_SHARE_FOR_CONNECTIONS: Final = 4


@click.command()
@click.option("--host", help="Address to listen on; anything but loopback needs SANDBOX_TOKEN.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="0 takes any that is free.  [default: 8080]")
@click.option("--uds", metavar="PATH", help="Listen on this Unix socket instead, in a directory that is yours alone.")
@click.option(
    "--with-parent",
    is_flag=True,
    help="End when the parent does; it keeps the other end of our standard input, a pipe.",
)
@click.option("--allow-weaker-isolation", metavar="NAMES", help="Run without these protections, separated by commas.")
def sandbox(
    host: str | None, port: int | None, uds: str | None, *, with_parent: bool, allow_weaker_isolation: str | None
) -> None:
    """Serve isolated Python over HTTP.

    Each option but --with-parent, and every other setting, can also be given in the environment, as SANDBOX_PORT and
    the like; docs/sandbox.md lists them. Without SANDBOX_TOKEN only programs of this machine are answered.
    """
    from antwort.sandbox.server import make_app  # noqa: PLC0415 - `antwort doctor` does not need a web server
    from antwort.sandbox.server.address import Address  # noqa: PLC0415 - the same reason
    from antwort.sandbox.server.loop import serve  # noqa: PLC0415 - the same reason
    from antwort.sandbox.server.settings import from_environment  # noqa: PLC0415 - the same reason

    if uds is not None and (host is not None or port is not None):
        raise click.UsageError("choose one place to listen: --uds, or --host and --port")
    try:
        family = parent.watch() if with_parent else None
        settings = from_environment(
            os.environ, host=host, port=port, uds=uds, allow_weaker_isolation=allow_weaker_isolation
        )
        settings.check()
        open_files = _make_room_for_files()
        with Address.open(settings) as address:
            found = hosts.probe(family)
            app = make_app(settings, found)
            _, found = asyncio.run(_try(found))  # a probe can be wrong; a container that answers cannot
            click.echo(f"antwort sandbox on {address} ({found.summary()})", err=True)
            serve(app, address, min(_MOST_CONNECTIONS, open_files // _SHARE_FOR_CONNECTIONS))
    except SandboxError as error:
        raise click.ClickException(str(error)) from error


def _make_room_for_files() -> int:
    """The soft limit is 1,024 on most hosts, and asking for more is what it is soft for. Answers what there is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return _OPEN_FILES if soft == resource.RLIM_INFINITY else soft


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
    if found.groups is not None and found.groups.moves:
        found = replace(found, groups=None)  # a doctor looks, and moves nobody
        console.print("The control group is left as it is; only the server divides it.")
    try:
        answer, _ = asyncio.run(_try(found))
    except SandboxError as error:
        raise click.ClickException(f"the walls are there, but {error}") from error
    console.print(f"A container was started and answered: {answer}")


async def _try(found: hosts.Host) -> tuple[str, hosts.Host]:
    """What a container answers, and what the host gives now that one was made."""
    async with Pool(found, modules=(), spares=False) as pool:
        container = await pool.create()
        try:
            reply = await container.execute("import platform; platform.python_version()", timeout=10)
        finally:
            await container.end("the check is over")
    return reply.result or reply.stderr or reply.reason or "nothing", pool.host
