"""`antwort serve`, `antwort keys` and `antwort doctor`: what a person types."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from antwort.auth import KeyFile, KeyFileError
from antwort.config import Config, ConfigError, load

_CONFIG = click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False), envvar="ANTWORT_CONFIG", help="A YAML file."
)


@click.command()
@_CONFIG
@click.option("--host", help="Address to listen on; anything but loopback needs keys.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="0 takes any that is free.  [default: 8080]")
def serve(config: Path | None, host: str | None, port: int | None) -> None:
    """Serve the Responses API."""
    from antwort.engine.ports import StoreFault  # noqa: PLC0415 - slow to import, and only this command needs it
    from antwort.http.server import run  # noqa: PLC0415 - likewise slow
    from antwort.storage import UnusableStore  # noqa: PLC0415 - likewise slow
    from antwort.telemetry import set_up_logging  # noqa: PLC0415 - likewise slow

    try:
        settings = _with_options(load(config, os.environ), host, port)
        set_up_logging(settings.log.level, settings.log.format)
        run(settings, os.environ, click.echo)
    except (ConfigError, KeyFileError, UnusableStore) as error:
        raise click.ClickException(str(error)) from error
    except StoreFault as fault:
        raise click.ClickException(f"{fault} Mend that, or change `storage`, and start again.") from fault


def _with_options(config: Config, host: str | None, port: int | None) -> Config:
    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    return msgspec.structs.replace(config, server=msgspec.structs.replace(config.server, **given))


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@click.group()
@click.option("--file", "path", type=click.Path(path_type=Path, dir_okay=False), help="The file of keys.")
@_CONFIG
@click.pass_context
def keys(context: click.Context, path: Path | None, config: Path | None) -> None:
    """Make, list and revoke API keys."""
    try:
        configured = load(config, os.environ).auth.keys_file
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
    context.obj = KeyFile(path or Path(configured or "keys.json"))


@keys.command("create")
@click.argument("name")
@click.option("--tenant", default="default", show_default=True, help="Whose objects this key sees.")
@click.option("--requests-per-minute", type=click.IntRange(1))
@click.option("--concurrent-responses", type=click.IntRange(1))
@click.pass_obj
def create(
    file: KeyFile, name: str, tenant: str, requests_per_minute: int | None, concurrent_responses: int | None
) -> None:
    """Make a key and print it, this once."""
    try:
        key, secret = file.create(
            name, tenant, requests_per_minute=requests_per_minute, concurrent_responses=concurrent_responses
        )
    except (KeyFileError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(secret)
    click.echo(f"Key {key.id} of tenant {key.tenant} is in {file.path}. It is shown only now: keep it safe.", err=True)


@keys.command("list")
@click.pass_obj
def list_keys(file: KeyFile) -> None:
    """Show the keys, never their secrets."""
    try:
        found = file.read()
    except KeyFileError as error:
        raise click.ClickException(str(error)) from error
    for key in found:
        made = datetime.fromtimestamp(key.created_at, UTC).date()
        state = "revoked" if key.revoked_at is not None else "active"
        click.echo(f"{key.id}  {state:7}  {key.tenant:16}  {made}  {key.name}")


@keys.command("revoke")
@click.argument("key_id")
@click.pass_obj
def revoke(file: KeyFile, key_id: str) -> None:
    """Let a key open nothing any more; a running server notices within seconds."""
    try:
        if not file.revoke(key_id):
            raise click.ClickException(f"There is no key {key_id}.")
    except (KeyFileError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"Key {key_id} is revoked.")


# ── doctor ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@click.command()
@_CONFIG
@click.pass_context
def doctor(context: click.Context, config: Path | None) -> None:
    """Look at what the server would open, try a container, and say what works. Nothing is made or changed."""
    from antwort.http.app import open_door  # noqa: PLC0415 - slow to import, and only this command needs it
    from antwort.models.directory import open_models  # noqa: PLC0415 - likewise slow
    from antwort.storage import UnusableStore, look_at_store  # noqa: PLC0415 - likewise slow
    from antwort.telemetry import Metrics  # noqa: PLC0415 - likewise slow

    async def look(settings: Config) -> str:
        open_door(settings)
        models = open_models(settings.models, Metrics(), os.environ)
        await models.aclose()
        return ", ".join(models.names()) or "none"

    try:
        settings = load(config, os.environ)
        click.echo("configuration  ok")
        names = asyncio.run(look(settings))
        storage = look_at_store(settings.storage.url, Path(settings.storage.blobs))
    except (ConfigError, KeyFileError, UnusableStore) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"models         {names}")
    click.echo(f"storage        {storage}: {settings.storage.url}")
    click.echo(f"keys           {settings.auth.keys_file or 'none: loopback only'}")
    from antwort.sandbox.command import doctor as isolation  # noqa: PLC0415 - likewise slow

    context.invoke(isolation)
