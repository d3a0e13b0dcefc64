"""Host mounts of a code interpreter: copied aside at once, uploaded before the first request, removed at the end."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from weakincentives.adapters.openai.native_tools.capability import ConfigError
from weakincentives.adapters.openai.native_tools.code_interpreter_tool import (
    MOST_FILES,
    AutoContainerConfig,
    CodeInterpreterConfig,
    container_of,
    plain_container,
)
from weakincentives.adapters.openai.responses.tool_params import Offer
from weakincentives.adapters.openai.sdk import faults, shorter
from weakincentives.adapters.openai.wire import Wire
from weakincentives.deadlines import Deadline
from weakincentives.errors import ProviderFault, WorkspaceError
from weakincentives.filesystem import materialize

if TYPE_CHECKING:
    from openai import OpenAI

_logger = logging.getLogger(__name__)

_PURPOSE = "user_data"
_EXPIRY: Any = {"anchor": "created_at", "seconds": 24 * 3600}  # for the day on which nobody comes to remove them
_REMOVAL_SECONDS = 10.0  # for each; the answer waits for it
_PLACE = "/mnt/data"


@dataclass
class Uploads:
    """The files of one evaluation's host mounts, by the names that they get in the container."""

    config: CodeInterpreterConfig
    container: AutoContainerConfig
    files: dict[str, Path]
    origins: dict[str, str]
    ids: dict[str, str] = field(default_factory=dict[str, str])

    def declare(self, client: OpenAI, deadline: Deadline | None) -> str | Wire:
        """The container with these files in it; they are uploaded when this is first asked for."""
        for name, path in self.files.items():
            if name not in self.ids:
                self.ids[name] = _upload(client, name, path, deadline)
        return plain_container(self.container, self.ids.values())

    def remove(self, client: OpenAI) -> None:
        """Take the files back; a container has its own copies. What fails is only logged: the answer is there."""
        for name, file_id in self.ids.items():
            try:
                client.files.delete(file_id, timeout=_REMOVAL_SECONDS)
            except Exception:  # whatever it is, nothing can be done about it here
                _logger.warning("uploaded file %s (%s) could not be deleted", file_id, name, exc_info=True)

    def note(self) -> str:
        """What the model is told, since the files lie elsewhere than where they were mounted."""
        lines = "\n".join(f"- {_PLACE}/{name} is {origin}" for name, origin in self.origins.items())
        return f"Files in the container:\n{lines}"


def plan_uploads(offer: Offer, cleanup: ExitStack) -> Uploads | None:
    """Look for host mounts in an offer, and copy their files aside. Nothing is sent. Raises `ConfigError`."""
    for offered in offer.natives:
        config = offered.declared.config
        if not isinstance(config, CodeInterpreterConfig):
            continue
        container = container_of(config.container)
        if isinstance(container, AutoContainerConfig) and container.host_mounts:
            return _plan(config, container, cleanup)
    return None


def _plan(config: CodeInterpreterConfig, container: AutoContainerConfig, cleanup: ExitStack) -> Uploads:
    place = Path(cleanup.enter_context(TemporaryDirectory(prefix="weakincentives-")))
    try:
        previews = materialize(container.host_mounts, allowed_host_roots=config.allowed_host_roots, destination=place)
    except WorkspaceError as error:
        raise ConfigError(f"container.host_mounts: {error}") from error
    paths = sorted(path for path in place.rglob("*") if path.is_file())
    most = MOST_FILES - len(container.file_ids)
    if len(paths) > most:
        raise ConfigError(
            f"container.host_mounts has {len(paths)} files, and a container takes {most} more: mount less of them"
        )
    names = _names(paths, place)
    _logger.debug("%d host files of %d mounts are ready for upload", len(paths), len(previews))
    origins = {name: f"/{path.relative_to(place).as_posix()}" for name, path in names.items()}
    return Uploads(config, container, names, origins)


def _names(paths: list[Path], place: Path) -> dict[str, Path]:
    """A container knows no directories, so a file goes by its name; by its whole path where that is not enough."""
    count = Counter(path.name for path in paths)
    names: dict[str, Path] = {}
    for path in paths:
        name = path.name if count[path.name] == 1 else "__".join(path.relative_to(place).parts)
        while name in names:
            name = f"_{name}"
        names[name] = path
    return names


def _upload(client: OpenAI, name: str, path: Path, deadline: Deadline | None) -> str:
    try:
        options: dict[str, Any] = {} if deadline is None else {"timeout": shorter(client, deadline.remaining)}
        with faults(), path.open("rb") as file:
            made = client.files.create(file=(name, file), purpose=_PURPOSE, expires_after=_EXPIRY, **options)
    except ProviderFault as fault:
        fault.args = (f"file {name} could not be uploaded: {fault}",)
        raise
    return made.id
