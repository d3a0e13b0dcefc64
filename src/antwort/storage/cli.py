"""CLI commands `antwort migrate`, `antwort export` and `antwort import`."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

if TYPE_CHECKING:
    from antwort.config import StorageSettings
    from antwort.storage.blobs import BlobStore
    from antwort.storage.maintenance import SchemaVersion
    from antwort.storage.transfer import RowProgress

# The modules of the extra `server` are imported by the functions that need them, so that `--help` works without it.

_CONFIG = click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="ANTWORT_CONFIG",
    help="The configuration, a YAML file: its `storage` is used.",
)
_FILE = click.Path(path_type=Path, dir_okay=False, allow_dash=True)
_DISPLAY_INTERVAL = 0.2
_STEPS_MISSING = 3


# ── migrate ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@click.command()
@_CONFIG
@click.option("--check", is_flag=True, help="Change nothing: exit with 3 if the schema needs a migration, else with 0.")
def migrate(config: Path | None, *, check: bool) -> None:
    """Create the schema of the database, or bring it up to date.

    `antwort serve` does the same at start. Run it before to see errors early, or where servers lack the privilege.
    Several at once are safe: PostgreSQL migrates once, and an SQLite database in use is refused. Exit codes: 0, 1 for
    an error, 2 for wrong arguments, and 3 if --check finds steps to run.
    """
    with _errors():
        from antwort.storage import display_url  # noqa: PLC0415 - needs an optional extra
        from antwort.storage.maintenance import migrate_store, schema_version  # noqa: PLC0415 - likewise optional

        url = _settings(config).url
        version = schema_version(url) if check else migrate_store(url)
        shown = display_url(url)
    if version.found == version.newest:
        click.echo(f"{shown}: the schema has version {version.newest}, the newest.")
    elif check:
        click.echo(f"{shown}: {_describe(version)} Run `antwort migrate`, or start the server.")
        raise click.exceptions.Exit(_STEPS_MISSING)
    else:
        before = f"from version {version.found}" if version.found else "from nothing"
        click.echo(f"{shown}: migrated {before} to version {version.newest}.")


def _describe(version: SchemaVersion) -> str:
    found = f"the schema has version {version.found}" if version.found else "there is no schema"
    return f"{found}, and this antwort needs version {version.newest}."


# ── export ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@click.command("export")
@_CONFIG
@click.argument("file", type=_FILE)
def export(config: Path | None, file: Path) -> None:
    """Write all stored objects to FILE, or to the standard output (-).

    The file has the responses with their items and events, the conversations, the files with their contents, and the
    records of containers; not API keys, sealing keys, sandboxes and what is in them. It is one consistent state, also
    while a server runs. Responses in progress are exported as such: stop the server first to move a store.
    """
    with _errors(), ExitStack() as stack:
        from antwort.storage import maintenance  # noqa: PLC0415 - needs an optional extra
        from antwort.storage.transfer import export_store  # noqa: PLC0415 - likewise optional

        settings = _settings(config)
        output = stack.enter_context(_output(file))
        database = maintenance.open_snapshot(settings.url)
        stack.callback(database.close)
        progress = _display()

        async def run() -> None:
            blobs = _open_blobs(settings)
            try:
                await export_store(database, blobs, output, progress)
            finally:
                await blobs.aclose()

        with database.translated_errors():
            asyncio.run(run())
    click.echo(f"Exported {_summary(progress)}.", err=True)
    if progress.skipped_files:
        click.echo(f"{progress.skipped_files} files were deleted meanwhile, and are not in it.", err=True)


@contextmanager
def _output(file: Path) -> Generator[IO[bytes]]:
    """The file, which gets its name when it is complete; the standard output for `-`."""
    if str(file) == "-":
        if sys.stdout.isatty():
            raise click.UsageError("The export is a tar archive: redirect the standard output.")
        yield sys.stdout.buffer
        return
    partial = file.with_name(f"{file.name}.partial")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise click.ClickException(
            f"{partial} exists: another export to {file} is running, or one was killed. Wait for it, or delete that "
            "file; or choose another name."
        ) from None
    try:
        with os.fdopen(descriptor, "wb") as stream:
            if file.exists():  # looked up here, where no other export can complete it
                raise click.ClickException(f"{file} exists. Delete it, or choose another name.")
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        partial.rename(file)
    finally:
        partial.unlink(missing_ok=True)


# ── import ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@click.command("import")
@_CONFIG
@click.option("--merge", is_flag=True, help="Import into a store that is not empty, behind the objects that it has.")
@click.argument("file", type=_FILE)
def import_(config: Path | None, file: Path, *, merge: bool) -> None:
    """Read FILE, which `antwort export` has written, into the configured store; - is the standard input.

    All or nothing: the file is checked, then imported in one transaction. Ids, tenants, API key ids and the order of
    lists stay. The store must be empty, and no server may use it; its schema is created. Copy the files of the API
    keys and of the sealing keys yourself.
    """
    with _errors(), ExitStack() as stack:
        from antwort.config import is_object_store  # noqa: PLC0415 - likewise optional
        from antwort.storage import maintenance  # noqa: PLC0415 - needs an optional extra
        from antwort.storage.sql import files, identity  # noqa: PLC0415 - likewise optional
        from antwort.storage.transfer import ExportReader, import_store, verify  # noqa: PLC0415 - likewise optional

        settings = _settings(config)
        source = sys.stdin.buffer if str(file) == "-" else stack.enter_context(file.open("rb"))
        if source.seekable():
            verify(source)
            source.seek(0)
        reader = ExportReader(source)
        blobs = _open_blobs(settings)
        directory = None if is_object_store(settings.blobs) else Path(settings.blobs)
        database = maintenance.open_target(settings.url, directory)
        stack.callback(database.close)
        progress = _display()

        async def known(names: Sequence[str]) -> set[str]:
            return files.referenced(database.rows, names)

        async def run() -> bool | None:
            try:
                await blobs.claim(identity.get(database.rows), known)
                return await import_store(database, blobs, reader, progress, merge=merge)
            finally:
                await blobs.aclose()

        with database.translated_errors():
            committed = asyncio.run(run())
    if committed is None:
        raise click.ClickException(
            "The connection broke during the commit: either all was imported, or nothing. Look whether the store is "
            "still empty, and import again if it is."
        )
    click.echo(f"Imported {_summary(progress)}.", err=True)


# ── what they share ──────────────────────────────────────────────────────────────────────────────────────────────────


def _settings(config: Path | None) -> StorageSettings:
    from antwort.config import load  # noqa: PLC0415 - needs an optional extra

    return load(config, os.environ).storage


def _open_blobs(settings: StorageSettings) -> BlobStore:
    from antwort.storage.blobs import DirectoryBlobs  # noqa: PLC0415 - needs an optional extra
    from antwort.storage.factory import is_postgres, open_blobs  # noqa: PLC0415 - likewise optional

    place = open_blobs(settings.blobs, settings.object_store, settings.orphan_age)
    if isinstance(place, Path):
        return DirectoryBlobs(place, is_shared=is_postgres(settings.url), orphan_age=settings.orphan_age)
    return place


def _display() -> RowProgress:
    """Progress on the standard error, if that is a terminal."""
    from antwort.storage.transfer import RowProgress  # noqa: PLC0415 - needs an optional extra

    class Display(RowProgress):
        def show(self) -> None:
            now = time.monotonic()
            if sys.stderr.isatty() and now - shown[0] > _DISPLAY_INTERVAL:
                shown[0] = now
                click.echo(f"\r{_summary(self)} …\x1b[K", err=True, nl=False)

    shown = [0.0]
    return Display()


def _summary(progress: RowProgress) -> str:
    counts = [
        f"{progress.rows.get(table, 0):,} {table}" for table in ("responses", "conversations", "files", "containers")
    ]
    return f"{', '.join(counts)}, {progress.content_bytes:,} bytes of content"


@contextmanager
def _errors() -> Generator[None]:
    """Errors of the configuration, the store and the file as one line on the standard error, with exit code 1."""
    from antwort.config import ConfigError  # noqa: PLC0415 - needs an optional extra
    from antwort.engine.stores import StoreFault  # noqa: PLC0415 - likewise optional
    from antwort.storage.errors import UnusableStore  # noqa: PLC0415 - likewise optional
    from antwort.storage.transfer import TransferError  # noqa: PLC0415 - likewise optional

    logging.getLogger("psycopg").setLevel(logging.ERROR)  # its warnings would be lines beside the error
    try:
        yield
    except (ConfigError, UnusableStore, TransferError, OSError) as error:
        raise click.ClickException(str(error)) from error
    except StoreFault as fault:
        raise click.ClickException(f"{fault} Fix that, and run the command again.") from fault
