"""CLI commands `antwort serve`, `antwort keys` and `antwort doctor`."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from msgspec import Struct

from antwort.auth import KeyFile, KeyFileError
from antwort.extras import explain_missing, require
from antwort.private_file import PrivateFileError

if TYPE_CHECKING:
    from antwort.config import Config
    from antwort.sealing import SealingKeys

# The modules of the extra `server` are imported by the functions that need them, so that `--help` works without it.

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
    from antwort.config import ConfigError, load  # noqa: PLC0415 - needs an optional extra
    from antwort.engine.stores import StoreFault  # noqa: PLC0415 - slow to import, and only this command needs it
    from antwort.http.server import run  # noqa: PLC0415 - likewise slow
    from antwort.storage import UnusableStore  # noqa: PLC0415 - likewise slow
    from antwort.telemetry import configure_logging  # noqa: PLC0415 - likewise slow

    try:
        settings = _apply_options(load(config, os.environ), host, port, model)
        configure_logging(settings.log.level, settings.log.format)
        run(settings, os.environ, click.echo, hints=hints)
    except (ConfigError, PrivateFileError, UnusableStore) as error:
        raise click.ClickException(str(error)) from error
    except StoreFault as fault:
        raise click.ClickException(f"{fault} Fix that, or change `storage`, and start again.") from fault


def _apply_options(config: Config, host: str | None, port: int | None, model: str | None) -> Config:
    from antwort.config import EmbeddedModel  # noqa: PLC0415 - needs an optional extra

    options = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    config = msgspec.structs.replace(config, server=msgspec.structs.replace(config.server, **options))
    if model is None:
        return config
    name = Path(model).stem if model.endswith(".gguf") else model
    aliases = dict.fromkeys((alias for alias in config.models.aliases if alias != name), name)
    models = msgspec.structs.replace(
        config.models, named={name: EmbeddedModel(model=model)}, default=name, aliases=aliases
    )
    compaction = msgspec.structs.replace(config.compaction, model=None)  # the models of the file are not served
    return msgspec.structs.replace(config, models=models, compaction=compaction)


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class _KeysOptions(Struct, frozen=True):
    """Options of the group `antwort keys`. The configuration is read by its commands, which may name another."""

    path: Path | None
    config: Path | None

    def key_file(self) -> KeyFile:
        from antwort.config import api_keys_path  # noqa: PLC0415 - needs an optional extra

        return KeyFile(self.path or api_keys_path(_load(self.config)))

    def is_used_by_server(self) -> bool:
        """Whether `antwort serve` with the same configuration reads this key file."""
        from antwort.config import ConfigError, api_keys_path, load  # noqa: PLC0415 - needs an optional extra

        try:
            return self.path is None or self.path.absolute() == api_keys_path(load(self.config, os.environ)).absolute()
        except ConfigError:
            return False


def _load(config: Path | None) -> Config:
    from antwort.config import ConfigError, load  # noqa: PLC0415 - needs an optional extra

    try:
        return load(config, os.environ)
    except ConfigError as error:
        raise click.ClickException(str(error)) from error


@click.group()
@click.option("--file", "path", type=_FILE_PATH, help="The file of the API keys.")
@_CONFIG
@click.pass_context
def keys(context: click.Context, path: Path | None, config: Path | None) -> None:
    """Create, list and revoke API keys; rotate the keys that seal compaction items."""
    context.obj = _KeysOptions(path, config)


@keys.command("create")
@click.argument("name")
@click.option("--tenant", default="default", show_default=True, help="The tenant whose objects this key can access.")
@click.option("--requests-per-minute", type=click.IntRange(1))
@click.option("--concurrent-responses", type=click.IntRange(1))
@click.pass_obj
def create(options: _KeysOptions, name: str, tenant: str, **limits: int | None) -> None:
    """Create a key and print it. It cannot be shown again."""
    file = options.key_file()
    try:
        key, secret = file.create(name, tenant, **limits)
    except (KeyFileError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(secret)
    message = f"Key {key.id} of tenant {key.tenant} is in {file.path}. The secret is not shown again: store it safely."
    click.echo(message, err=True)
    if options.is_used_by_server():
        used = (
            "`antwort serve` with the same configuration uses it, a running server within seconds: requests need a key."
        )
    else:
        used = f"`antwort serve` does not use this file unless you write `auth: {{keys_file: {file.path.absolute()}}}`."
    click.echo(used, err=True)


@keys.command("list")
@click.pass_obj
def list_keys(options: _KeysOptions) -> None:
    """List the keys, without their secrets."""
    try:
        found = options.key_file().read()
    except KeyFileError as error:
        raise click.ClickException(str(error)) from error
    for key in found:
        created = datetime.fromtimestamp(key.created_at, UTC).date()
        state = "revoked" if key.revoked_at is not None else "active"
        click.echo(f"{key.id}  {state:7}  {key.tenant:16}  {created}  {key.name}")


@keys.command("revoke")
@click.argument("key_id")
@click.pass_obj
def revoke(options: _KeysOptions, key_id: str) -> None:
    """Revoke a key. A running server rejects it within seconds."""
    try:
        if not options.key_file().revoke(key_id):
            raise click.ClickException(f"No key {key_id}.")
    except (KeyFileError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"Key {key_id} is revoked.")


@keys.command("rotate-compaction")
@click.option("--config", type=_FILE_PATH, help="The configuration, a YAML file; also accepted before this command.")
@click.option("--keep", type=click.IntRange(1), help="Keep only this many keys, the newest.  [default: all]")
@click.pass_obj
def rotate_compaction(options: _KeysOptions, config: Path | None, keep: int | None) -> None:
    """Add a key that seals compaction and reasoning items from now on.

    Items that were sealed with an older key stay readable until that key is dropped: `--keep 1` drops all older keys.
    A running server uses the new key within seconds.
    """
    if options.path is not None:
        raise click.UsageError(
            "--file names the file of the API keys; `compaction.keys_file` names that of these keys."
        )
    from antwort.config import compaction_keys_path  # noqa: PLC0415 - needs an optional extra

    path = compaction_keys_path(_load(config or options.config))
    try:
        before, after = _rotate(path, keep)
    except PrivateFileError as error:
        raise click.ClickException(str(error)) from error
    dropped = [key.id for key in before.keys if key not in after.keys]
    click.echo(f"Key {after.newest.id} in {path} seals new items; a running server uses it within seconds.")
    readable = "" if len(after.keys) == 1 else " Items sealed with an older key are readable until it is dropped."
    click.echo(f"{_count_keys(after)} kept.{readable}")
    if dropped:
        click.echo(f"Dropped: {', '.join(dropped)}. Items sealed with a dropped key can no longer be read.")


def _rotate(path: Path, keep: int | None) -> tuple[SealingKeys, SealingKeys]:
    """The keys before and after. If there were none, one is created."""
    from antwort.sealing import MissingSealingKeys, SealingKeys  # noqa: PLC0415 - slow to import

    try:
        before = SealingKeys.read(path)
    except MissingSealingKeys:
        created = SealingKeys.open_or_create(path)
        return created, created
    return before, before.rotate(keep=keep)


def _sealing_state(path: Path) -> str:
    from antwort.sealing import MissingSealingKeys, SealingKeys  # noqa: PLC0415 - slow to import

    try:
        return _count_keys(SealingKeys.read(path))
    except MissingSealingKeys:
        return "will be created on the first start"


def _count_keys(ring: SealingKeys) -> str:
    return "1 key" if len(ring.keys) == 1 else f"{len(ring.keys)} keys"


# ── doctor ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@click.command()
@_CONFIG
@click.pass_context
def doctor(context: click.Context, config: Path | None) -> None:
    """Check the configuration, models, storage and sandbox, and report what works.

    Creates and changes nothing, and sends no request that costs money. Without the extra `server` only the sandbox is
    checked, and without the extra `sandbox` only the rest.
    """
    try:
        is_working = _check_server(config)
    except ModuleNotFoundError as error:
        if config is not None:
            raise
        click.echo(f"server         {explain_missing(error, 'server')}")
        is_working = True
    try:
        require("sandbox")
        from antwort.sandbox.cli import doctor as isolation  # noqa: PLC0415 - slow, and needs an optional extra
    except ModuleNotFoundError as error:
        click.echo(f"sandbox        {explain_missing(error, 'sandbox')}")
    else:
        context.invoke(isolation)
    if not is_working:
        raise click.ClickException("a model is not usable; see above")


def _check_server(config: Path | None) -> bool:
    """Check and report everything but the sandbox; returns whether all models are usable."""
    from antwort.config import ConfigError, compaction_keys_path, load  # noqa: PLC0415 - needs an optional extra
    from antwort.http.app import open_authenticator  # noqa: PLC0415 - slow to import, and only this command needs it
    from antwort.http.server import describe_keys  # noqa: PLC0415 - likewise slow
    from antwort.storage import UnusableStore, display_url, inspect_store  # noqa: PLC0415 - likewise slow
    from antwort.telemetry import configure_logging  # noqa: PLC0415 - likewise slow
    from antwort.tools.mcp import check_mcp  # noqa: PLC0415 - likewise slow

    configure_logging("error", "text")  # the results are printed below; errors say why a model does not start
    try:
        settings = load(config, os.environ)
        click.echo("configuration  ok")
        authenticator = open_authenticator(settings)
        is_working = asyncio.run(_check_models(settings))
        storage = inspect_store(settings.storage.url, settings.storage.blobs, settings.storage.object_store)
        mcp = check_mcp(settings, os.environ)
        sealing = _sealing_state(compaction_keys_path(settings))
    except (ConfigError, PrivateFileError, UnusableStore) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"storage        {storage}: {display_url(settings.storage.url)}")
    click.echo(f"keys           {describe_keys(authenticator, settings)}")
    click.echo(f"sealing keys   {sealing}: {compaction_keys_path(settings)}")
    for at, line in enumerate(mcp):
        click.echo(f"{'' if at else 'mcp':<15}{line}")
    return is_working


async def _check_models(settings: Config) -> bool:
    from antwort.models.discovery import check_model, discover_models  # noqa: PLC0415 - slow to import
    from antwort.models.registry import kind_of, open_models  # noqa: PLC0415 - likewise slow
    from antwort.telemetry import Metrics  # noqa: PLC0415 - likewise slow

    found = await discover_models(settings.models, os.environ, own_port=settings.server.port)
    models = open_models(found.models, Metrics(), os.environ)
    click.echo(f"models         {found.reason}" if found.models.named else f"models         none: {found.reason}")
    try:
        is_working = True
        for name in [name for name in models.names() if name == models.default or found.models is settings.models]:
            model = found.models.named[name]
            state = await check_model(models.find(name), model, os.environ)
            click.echo(f"{'':15}{name} ({kind_of(model)}) {state.detail}")
            is_working = is_working and state.is_usable
    finally:
        await models.aclose()
    return is_working
