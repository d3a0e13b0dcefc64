"""CLI commands `antwort sandbox` (starts the sandbox server) and `antwort doctor` (checks the host's isolation)."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from dataclasses import replace
from typing import Final

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from antwort.sandbox.errors import SandboxServerError
from antwort.sandbox.host import parent
from antwort.sandbox.host import probe as hosts
from antwort.sandbox.jail import privileges
from antwort.sandbox.pool.pool import Pool

_MAX_CONNECTIONS: Final = 1_000
_MAX_OPEN_FILES: Final = 16_384  # a connection uses one, a container eight
_PROGRAMS: Final = ("bash", "ls", "git", "sed", "awk", "grep", "find", "tar", "diff", "python3")
"""Programs that models use in shell commands; containers see those of the host, read-only."""
_FILES_PER_CONNECTION: Final = 4  # leaves three in four for containers


@click.command()
@click.option("--host", help="Address to listen on; other than loopback needs SANDBOX_TOKEN.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 selects a free one.  [default: 8080]")
@click.option("--uds", metavar="PATH", help="Listen on this Unix socket instead; its directory must be private to you.")
@click.option(
    "--with-parent",
    is_flag=True,
    help="Exit when the parent process exits. Standard input must be a pipe whose other end the parent keeps open.",
)
@click.option("--allow-weaker-isolation", metavar="NAMES", help="Run without these protections (comma-separated).")
def sandbox(
    host: str | None, port: int | None, uds: str | None, *, with_parent: bool, allow_weaker_isolation: str | None
) -> None:
    """Start the sandbox server: isolated Python over HTTP.

    Each option but --with-parent, and every other setting, can also be set in the environment (SANDBOX_PORT and so
    on); docs/sandbox.md lists them. Without SANDBOX_TOKEN only connections from this machine are accepted.
    """
    from antwort.sandbox.server import make_app  # noqa: PLC0415 - `antwort doctor` does not need a web server
    from antwort.sandbox.server.address import Address  # noqa: PLC0415 - the same reason
    from antwort.sandbox.server.loop import serve  # noqa: PLC0415 - the same reason
    from antwort.sandbox.server.settings import from_environment  # noqa: PLC0415 - the same reason

    if uds is not None and (host is not None or port is not None):
        raise click.UsageError("--uds cannot be combined with --host or --port")
    try:
        parent_pid = parent.watch() if with_parent else None
        settings = from_environment(
            os.environ, host=host, port=port, uds=uds, allow_weaker_isolation=allow_weaker_isolation
        )
        settings.check()
        open_files = _raise_nofile_limit()
        with Address.open(settings) as address:
            found = hosts.probe(parent_pid)
            app = make_app(settings, found)
            _, found = asyncio.run(_run_check(found))  # a probe can be wrong; this runs a container
            click.echo(f"antwort sandbox on {address} ({found.summary()})", err=True)
            if "namespaces" not in found.layers and sys.platform == "linux":
                privileges.clear_dumpable()  # the code sees this process, and runs as the same user
            serve(app, address, min(_MAX_CONNECTIONS, open_files // _FILES_PER_CONNECTION))
    except SandboxServerError as error:
        raise click.ClickException(str(error)) from error


def _raise_nofile_limit() -> int:
    """Raise the soft limit on open files, which is 1,024 on most hosts; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(_MAX_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return _MAX_OPEN_FILES if soft == resource.RLIM_INFINITY else soft


@click.command()
def doctor() -> None:
    """Check which isolation this host supports, and run a container with it."""
    found = hosts.probe()
    table = Table("protection", "state", "purpose", title="Isolation of untrusted code on this host")
    for row in found.lines():
        table.add_row(*map(escape, row))
    console = Console()
    console.print(table)
    if found.missing:
        missing = ", ".join(sorted(found.missing))
        console.print(f"Missing: {missing}. The sandbox refuses to start unless they are waived.")
        raise SystemExit(1)
    if found.cgroups is not None and found.cgroups.must_move:
        found = replace(found, cgroups=None)  # this command must not move processes
        console.print("Cgroups are not tested: that would move processes, which only the server does.")
    try:
        output, found = asyncio.run(_run_check(found))
        missing_programs = asyncio.run(_missing_programs(found))
    except SandboxServerError as error:
        raise click.ClickException(f"the protections are available, but {error}") from error
    console.print(f"A container was started and returned: {output}")
    if missing_programs:
        console.print(f"Missing for shell commands: {', '.join(missing_programs)}. Install them on this host.")
    else:
        console.print(f"Shell commands have {', '.join(_PROGRAMS)}.")


async def _run_check(found: hosts.Host) -> tuple[str, hosts.Host]:
    """Run code in a container; returns its output, and the host's protections with cgroups claimed."""
    async with Pool(found, modules=(), prefork=False) as pool:
        container = await pool.create()
        try:
            reply = await container.execute("import platform; platform.python_version()", timeout=10)
        finally:
            await container.end("the check has ended")
    return reply.result or reply.stderr or reply.reason or "no output", pool.host


async def _missing_programs(found: hosts.Host) -> list[str]:
    """The programs that shell commands in a container do not find."""
    async with Pool(found, modules=(), prefork=False) as pool:
        container = await pool.create()
        try:
            tests = "; ".join(f"command -v {name} > /dev/null || echo {name}" for name in _PROGRAMS)
            reply = await container.run_command(tests, timeout=10)
        finally:
            await container.end("the check has ended")
    return reply.stdout.split()
