"""Commands `antwort model pull | list | rm`: download, list and remove weights of the embedded model."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from antwort.models.embedded.pull import pull as download
from antwort.models.embedded.weights import (
    CATALOGUE,
    DEFAULT_MODEL,
    Weights,
    WeightsCache,
    WeightsError,
    format_size,
    get_weights,
)


@click.group()
def model() -> None:
    """Download, list and remove the weights of embedded models."""


@model.command("pull")
@click.argument("name", default=DEFAULT_MODEL)
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Install a local copy instead of downloading; the file itself is not moved.",
)
def pull(name: str, file: Path | None) -> None:
    """Download weights if they are not installed; an interrupted download is resumed."""
    cache = WeightsCache()
    with _cli_errors():
        weights = get_weights(name)
        if file is None and cache.has(weights):
            click.echo(f"{name} is installed: {cache.path(weights)}")
            return
        click.echo(f"{name}: {format_size(weights.size)}, {weights.licence}, into {cache.folder}")
        with ProgressDisplay(weights) as progress:
            path = download(weights, cache, progress, file=file)
    click.echo(f"{name} is installed, SHA-256 verified: {path}")


@model.command("list")
def list_weights() -> None:
    """List the known weights and which of them are installed."""
    cache = WeightsCache()
    for weights in CATALOGUE.values():
        partial = cache.partial_size(weights)
        state = "installed" if cache.has(weights) else f"{format_size(partial)} downloaded" if partial else "-"
        default = "  (default)" if weights.name == DEFAULT_MODEL else ""
        click.echo(f"{weights.name:20}  {format_size(weights.size):>7}  {weights.licence:10}  {state}{default}")
    click.echo(f"in {cache.folder}")


@model.command("rm")
@click.argument("name")
def remove(name: str) -> None:
    """Remove weights and partial downloads of them."""
    cache = WeightsCache()
    with _cli_errors():
        weights = get_weights(name)
        with cache.lock(weights, lambda: click.echo("Another process downloads them; waiting for it …", err=True)):
            if not cache.remove(weights):
                raise WeightsError(f"{name} is not installed in {cache.folder}, not even in part.")
    click.echo(f"{name} was removed.")


@contextmanager
def _cli_errors() -> Generator[None]:
    try:
        yield
    except WeightsError as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        raise click.ClickException("Interrupted. The partial download is kept: the same command resumes it.") from None


class ProgressDisplay:
    """Progress bar on the terminal: size, speed, remaining time. Implements `PullProgress`."""

    def __init__(self, weights: Weights, console: Console | None = None) -> None:
        columns = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
        console = console or Console(stderr=True)
        self._progress = Progress(TextColumn("{task.description}"), *columns, console=console)
        self._size = weights.size
        self._download_task = self._progress.add_task("starting", total=weights.size)
        self._hash_task = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def waiting_for_lock(self) -> None:
        self._progress.console.print("Another process downloads the same file; waiting for it …")

    def source_selected(self, name: str) -> None:
        self._progress.console.print(f"from {name}")
        self._progress.reset(self._download_task, description="downloading", total=self._size)
        self._hash_task = None

    def downloaded(self, size: int) -> None:
        self._progress.update(self._download_task, completed=size)

    def hashed(self, size: int) -> None:
        if self._hash_task is None:
            self._hash_task = self._progress.add_task("verifying", total=self._size)
        self._progress.advance(self._hash_task, size)
