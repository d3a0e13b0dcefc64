"""CLI commands `antwort serve`, `antwort keys` and `antwort doctor`."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from antwort.auth import KeyFile, KeyFileError
from antwort.config import Config, ConfigError, EmbeddedModel, load

_FILE_PATH = click.Path(path_type=Path, dir_okay=False)
_CONFIG = click.option("--config", type=_FILE_PATH, envvar="ANTWORT_CONFIG", help="The configuration, a YAML file.")


@click.command()
@_CONFIG
@click.option("--host", help="Address to listen on; any other than loopback requires keys.  [default: 127.0.0.1]")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 selects a free port.  [default: 8080]"
)
@click.option(
    "--model", metavar="NAME|FILE", help="Serve this embedded model: a name from `antwort model list`, or a .gguf file."
)
@click.option("--hints", is_flag=True, help="Print example requests: a curl command, and a Python program.")
def serve(config: Path | None, host: str | None, port: int | None, model: str | None, *, hints: bool) -> None:
    """Serve the Responses API.

    If the configuration has no model, the server searches for one: OPENAI_API_KEY or OPENAI_BASE_URL, a model server
    on this machine, the embedded model.
    """
    from antwort.engine.stores import StoreFault  # noqa: PLC0415 - slow to import, and only this command needs it
    from antwort.http.server import run  # noqa: PLC0415 - likewise slow
    from antwort.storage import UnusableStore  # noqa: PLC0415 - likewise slow
    from antwort.telemetry import configure_logging  # noqa: PLC0415 - likewise slow

    try:
        settings = _apply_options(load(config, os.environ), host, port, model)
        configure_logging(settings.log.level, settings.log.format)
        run(settings, os.environ, click.echo, hints=hints)
    except (ConfigError, KeyFileError, UnusableStore) as error:
        raise click.ClickException(str(error)) from error
    except StoreFault as fault:
        raise click.ClickException(f"{fault} Fix that, or change `storage`, and start again.") from fault


def _apply_options(config: Config, host: str | None, port: int | None, model: str | None) -> Config:
    options = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    config = msgspec.structs.replace(config, server=msgspec.structs.replace(config.server, **options))
    if model is None:
        return config
    name = Path(model).stem if model.endswith(".gguf") else model
    models = msgspec.structs.replace(config.models, named={name: EmbeddedModel(model=model)}, default=name)
    return msgspec.structs.replace(config, models=models)


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@click.group()
@click.option("--file", "path", type=_FILE_PATH, help="The key file.")
@_CONFIG
@click.pass_context
def keys(context: click.Context, path: Path | None, config: Path | None) -> None:
    """Create, list and revoke API keys."""
    try:
        configured = load(config, os.environ).auth.keys_file
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
    context.obj = KeyFile(path or Path(configured or "keys.json"))


@keys.command("create")
@click.argument("name")
@click.option("--tenant", default="default", show_default=True, help="The tenant whose objects this key can access.")
@click.option("--requests-per-minute", type=click.IntRange(1))
@click.option("--concurrent-responses", type=click.IntRange(1))
@click.pass_obj
def create(file: KeyFile, name: str, tenant: str, **limits: int | None) -> None:
    """Create a key and print it. It cannot be shown again."""
    try:
        key, secret = file.create(name, tenant, **limits)
    except (KeyFileError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(secret)
    message = f"Key {key.id} of tenant {key.tenant} is in {file.path}. The secret is not shown again: store it safely."
    click.echo(message, err=True)


@keys.command("list")
@click.pass_obj
def list_keys(file: KeyFile) -> None:
    """List the keys, without their secrets."""
    try:
        found = file.read()
    except KeyFileError as error:
        raise click.ClickException(str(error)) from error
    for key in found:
        created = datetime.fromtimestamp(key.created_at, UTC).date()
        state = "revoked" if key.revoked_at is not None else "active"
        click.echo(f"{key.id}  {state:7}  {key.tenant:16}  {created}  {key.name}")


@keys.command("revoke")
@click.argument("key_id")
@click.pass_obj
def revoke(file: KeyFile, key_id: str) -> None:
    """Revoke a key. A running server rejects it within seconds."""
    try:
        if not file.revoke(key_id):
            raise click.ClickException(f"No key {key_id}.")
    except (KeyFileError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"Key {key_id} is revoked.")


# ── doctor ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@click.command()
@_CONFIG
@click.pass_context
def doctor(context: click.Context, config: Path | None) -> None:
    """Check the configuration, models, storage and sandbox, and report what works.

    Creates and changes nothing, and sends no request that costs money.
    """
    from antwort.http.app import open_authenticator  # noqa: PLC0415 - slow to import, and only this command needs it
    from antwort.models.discovery import check_model, discover_models  # noqa: PLC0415 - likewise slow
    from antwort.models.registry import kind_of, open_models  # noqa: PLC0415 - likewise slow
    from antwort.storage import UnusableStore, inspect_store  # noqa: PLC0415 - likewise slow
    from antwort.telemetry import Metrics, configure_logging  # noqa: PLC0415 - likewise slow

    configure_logging("error", "text")  # the results are printed below; errors say why a model does not start

    async def check_models(settings: Config) -> bool:
        open_authenticator(settings)
        found = await discover_models(settings.models, os.environ, own_port=settings.server.port)
        models = open_models(found.models, Metrics(), os.environ)
        click.echo(f"models         {found.reason}" if found.models.named else f"models         none: {found.reason}")
        try:
            working = True
            for name in [name for name in models.names() if name == models.default or found.models is settings.models]:
                model = found.models.named[name]
                state = await check_model(models.find(name), model, os.environ)
                click.echo(f"{'':15}{name} ({kind_of(model)}) {state.detail}")
                working = working and state.is_usable
        finally:
            await models.aclose()
        return working

    try:
        settings = load(config, os.environ)
        click.echo("configuration  ok")
        working = asyncio.run(check_models(settings))
        storage = inspect_store(settings.storage.url, Path(settings.storage.blobs))
    except (ConfigError, KeyFileError, UnusableStore) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"storage        {storage}: {settings.storage.url}")
    click.echo(f"keys           {settings.auth.keys_file or 'none: loopback only'}")
    from antwort.sandbox.cli import doctor as isolation  # noqa: PLC0415 - likewise slow

    context.invoke(isolation)
    if not working:
        raise click.ClickException("a model is not usable; see above")
