"""Uploads of the `host_mounts` of code interpreter: copied, uploaded before the first request, deleted at the end."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from weakincentives.adapters.openai.native_tools.capability import ToolConfigError
from weakincentives.adapters.openai.native_tools.code_interpreter_tool import (
    MAX_FILES,
    AutoContainerConfig,
    CodeInterpreterConfig,
    container_param,
    parse_container,
)
from weakincentives.adapters.openai.responses.tool_params import ToolParams
from weakincentives.adapters.openai.sdk import request_timeout, translate_errors
from weakincentives.adapters.openai.wire import Wire
from weakincentives.deadlines import Deadline
from weakincentives.errors import ProviderFault, WorkspaceError
from weakincentives.filesystem import materialize

if TYPE_CHECKING:
    from openai import OpenAI

_logger = logging.getLogger(__name__)

_PURPOSE = "user_data"
_EXPIRY: Any = {"anchor": "created_at", "seconds": 24 * 3600}  # in case the deletion fails
_DELETE_TIMEOUT_SECONDS = 10.0  # for each file; `evaluate` returns after it
_CONTAINER_ROOT = "/mnt/data"


@dataclass
class Uploads:
    """The files of one evaluation's host mounts, by their names in the container."""

    config: CodeInterpreterConfig
    container: AutoContainerConfig
    files: dict[str, Path]
    mount_paths: dict[str, str]
    ids: dict[str, str] = field(default_factory=dict[str, str])

    def check_file_types(self, client: OpenAI) -> None:
        """Raise `ToolConfigError` for files of types that the client's server does not support."""
        types = self.config.file_types
        why = types and types.refusal(self.mount_paths.values, base_url=client.base_url, setting="file_types={}")
        if why:
            raise ToolConfigError(f"container.host_mounts: {why}")

    def container_param(self, client: OpenAI, deadline: Deadline | None) -> str | Wire:
        """The `container` of the declaration with these files, which are uploaded on the first call."""
        for name, path in self.files.items():
            if name not in self.ids:
                self.ids[name] = _upload(client, name, path, deadline)
        return container_param(self.container, self.ids.values())

    def remove(self, client: OpenAI) -> None:
        """Delete the uploaded files; a container has copies. Failures are only logged."""
        for name, file_id in self.ids.items():
            try:
                client.files.delete(file_id, timeout=_DELETE_TIMEOUT_SECONDS)
            except Exception:  # any SDK error; the evaluation has its answer
                _logger.warning("uploaded file %s (%s) could not be deleted", file_id, name, exc_info=True)

    def note(self) -> str:
        """A message for the model: the files are not at their mount paths."""
        lines = "\n".join(f"- {_CONTAINER_ROOT}/{name} is {origin}" for name, origin in self.mount_paths.items())
        return f"Files in the container:\n{lines}"


def plan_uploads(params: ToolParams, cleanup: ExitStack) -> Uploads | None:
    """Find host mounts in the tools and copy their files to a temporary directory. Raises `ToolConfigError`."""
    for one in params.native:
        config = one.declaration.config
        if not isinstance(config, CodeInterpreterConfig):
            continue
        container = parse_container(config.container)
        if isinstance(container, AutoContainerConfig) and container.host_mounts:
            return _copy_mounts(config, container, cleanup)
    return None


def _copy_mounts(config: CodeInterpreterConfig, container: AutoContainerConfig, cleanup: ExitStack) -> Uploads:
    root = Path(cleanup.enter_context(TemporaryDirectory(prefix="weakincentives-")))
    try:
        previews = materialize(container.host_mounts, allowed_host_roots=config.allowed_host_roots, destination=root)
    except WorkspaceError as error:
        raise ToolConfigError(f"container.host_mounts: {error}") from error
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    max_files = MAX_FILES - len(container.file_ids)
    if len(paths) > max_files:
        raise ToolConfigError(
            f"container.host_mounts has {len(paths)} files, and a container takes {max_files} more: mount less of them"
        )
    names = _names(paths, root)
    _logger.debug("%d host files of %d mounts are ready for upload", len(paths), len(previews))
    mount_paths = {name: f"/{path.relative_to(root).as_posix()}" for name, path in names.items()}
    return Uploads(config, container, names, mount_paths)


def _names(paths: list[Path], root: Path) -> dict[str, Path]:
    """Unique names, since the API has no directories: the file's name, or its whole path if that is not unique."""
    count = Counter(path.name for path in paths)
    names: dict[str, Path] = {}
    for path in paths:
        name = path.name if count[path.name] == 1 else "__".join(path.relative_to(root).parts)
        while name in names:
            name = f"_{name}"
        names[name] = path
    return names


def _upload(client: OpenAI, name: str, path: Path, deadline: Deadline | None) -> str:
    try:
        options: dict[str, Any] = {} if deadline is None else {"timeout": request_timeout(client, deadline.remaining)}
        with translate_errors(), path.open("rb") as file:
            uploaded = client.files.create(file=(name, file), purpose=_PURPOSE, expires_after=_EXPIRY, **options)
    except ProviderFault as fault:
        fault.args = (f"file {name} could not be uploaded: {fault}",)
        raise
    return uploaded.id
