"""`antwort model pull | list | rm`: the weights on this machine, as a person handles them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from antwort.models.embedded.pull import pull as fetch
from antwort.models.embedded.weights import CATALOGUE, DEFAULT, Cache, Weights, WeightsError, known, shown


@click.group()
def model() -> None:
    """Fetch, list and remove the weights of embedded models."""


@model.command("pull")
@click.argument("name", default=DEFAULT)
@click.option(
    "--file", type=click.Path(path_type=Path, dir_okay=False), help="A copy that you have; it stays where it is."
)
def pull(name: str, file: Path | None) -> None:
    """Fetch weights, if they are not here; what was broken off is gone on with."""
    cache = Cache()
    with _told():
        weights = known(name)
        if file is None and cache.has(weights):
            click.echo(f"{name} is here: {cache.path(weights)}")
            return
        click.echo(f"{name}: {shown(weights.size)}, {weights.licence}, into {cache.folder}")
        with Shown(weights) as watcher:
            path = fetch(weights, cache, watcher, file=file)
    click.echo(f"{name} is here, and its SHA-256 is right: {path}")


@model.command("list")
def list_weights() -> None:
    """Show the weights that are known, and which of them are here."""
    cache = Cache()
    for weights in CATALOGUE.values():
        begun = cache.begun(weights)
        state = "here" if cache.has(weights) else f"{shown(begun)} of it" if begun else "-"
        default = "  (default)" if weights.name == DEFAULT else ""
        click.echo(f"{weights.name:20}  {shown(weights.size):>7}  {weights.licence:10}  {state}{default}")
    click.echo(f"in {cache.folder}")


@model.command("rm")
@click.argument("name")
def remove(name: str) -> None:
    """Remove weights, and what a broken download has left of them."""
    cache = Cache()
    with _told():
        weights = known(name)
        with cache.locked(weights, lambda: click.echo("Another process fetches them; waiting for it …", err=True)):
            if not cache.remove(weights):
                raise WeightsError(f"There is nothing of {name} in {cache.folder}.")
    click.echo(f"{name} is removed.")


@contextmanager
def _told() -> Generator[None]:
    try:
        yield
    except WeightsError as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        raise click.ClickException("Stopped. What came so far is kept: the same command goes on from there.") from None


class Shown:
    """Progress on a terminal: how much, how fast, how long still."""

    def __init__(self, weights: Weights, console: Console | None = None) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console or Console(stderr=True),
        )
        self._size = weights.size
        self._task = self._progress.add_task("looking", total=weights.size)
        self._check = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def waiting(self) -> None:
        """Another process fetches the same."""
        self._progress.console.print("Another process fetches the same; waiting for it …")

    def source(self, name: str) -> None:
        """Where they are taken from now."""
        self._progress.console.print(f"from {name}")
        self._progress.reset(self._task, description="fetching", total=self._size)
        self._check = None

    def here(self, size: int) -> None:
        """So many bytes are here."""
        self._progress.update(self._task, completed=size)

    def checked(self, size: int) -> None:
        """So many more bytes have been hashed."""
        if self._check is None:
            self._check = self._progress.add_task("checking", total=self._size)
        self._progress.advance(self._check, size)
