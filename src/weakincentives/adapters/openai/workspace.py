"""`OpenAIContainerWorkspaceSection`: host files in the container in which code interpreter runs.

The section is a `ContainerSource`: it creates and fills the container before the first request, lists the container's
files after every response, and replaces a container that expired.
"""

from __future__ import annotations

import json
import logging
import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from weakincentives.adapters.openai.config import ContainerConfig
from weakincentives.adapters.openai.containers.api import CONTAINER_ROOT, ContainerGone
from weakincentives.adapters.openai.containers.filesystem import ContainerFilesystem
from weakincentives.adapters.openai.containers.manager import manager_for
from weakincentives.adapters.openai.containers.source import EvaluationScope
from weakincentives.errors import FilesystemError, ProviderFault, WinkError, WorkspaceError
from weakincentives.filesystem import Filesystem, HostFilesystem, HostMount, HostMountPreview
from weakincentives.prompt import MarkdownSection, SupportsDataclass
from weakincentives.resources import ResourceRegistry
from weakincentives.runtime import Session, WorkspaceSynced
from weakincentives.tools.workspace import MountedFiles, describe

if TYPE_CHECKING:
    from openai import OpenAI

_logger = logging.getLogger(__name__)

_MAX_NOTE_PATHS = 50
_PATH_MAP_FILE = "workspace-paths.json"
_WORKSPACE_ARGUMENTS = (
    *("session", "mounts", "allowed_host_roots", "container_config", "sync_on_cleanup", "accepts_overrides"),
    *("client", "results_dir"),
)
_SECTION_ARGUMENTS = ("title", "key", "children", "enabled", "summary", "visibility")

_TEMPLATE = """\
Your files are in the container of the `python` tool, below `/mnt/data`. A path such as `a/b` means `/mnt/data/a/b`.
Read and change them there with code. Whatever you leave below `/mnt/data` is kept; nothing else is.

${mounts}"""


_NO_RESULTS_DIR = (
    "sync_on_cleanup=True without results_dir: cleanup() downloads the container's files to temp_dir, and then removes "
    "temp_dir. To keep new and changed files, give results_dir=…; mounted folders are never written to"
)


@dataclass(frozen=True)
class _WorkspaceSectionParams:
    mounts: str = ""


class OpenAIContainerWorkspaceSection(MarkdownSection[_WorkspaceSectionParams]):
    """A prompt section with host files in the container of code interpreter or of a hosted shell.

    Rendering plans the mounts: it lists their directories and reads no file. The files are copied, and the container
    is created, by an evaluation or by the first use of `filesystem`. `cleanup`, or the end of a `with` block, removes
    both.

    `client` is used before an evaluation, which has its own; without it a client is created from the environment.
    `sync_on_cleanup` downloads the container's files before the container is deleted. The temporary directory is
    removed too, so give `results_dir`: it receives every file that is new, or that changed since it was mounted.
    `container_config` also says whether `cleanup` deletes the container.
    """

    def __init__(
        self,
        *,
        session: Session,
        mounts: Sequence[HostMount] = (),
        allowed_host_roots: Sequence[os.PathLike[str] | str] = (),
        container_config: ContainerConfig | None = None,
        sync_on_cleanup: bool = False,
        accepts_overrides: bool = False,
        client: OpenAI | None = None,
        results_dir: os.PathLike[str] | str | None = None,
    ) -> None:
        self.session = session
        self.container_config = container_config or ContainerConfig()
        self.sync_on_cleanup = sync_on_cleanup
        self.client = client
        self.results_dir = None if results_dir is None else Path(results_dir)
        self._files = MountedFiles(mounts, allowed_host_roots)
        self._filesystem = ContainerFilesystem(
            manager=manager_for(session, self.container_config, client), local_root=self._files.copy
        )
        self._is_closed = False
        if sync_on_cleanup and results_dir is None:
            warnings.warn(_NO_RESULTS_DIR, stacklevel=2)
        super().__init__(title="Workspace", key="workspace", template=_TEMPLATE, accepts_overrides=accepts_overrides)

    # ── the section ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def mounts(self) -> tuple[HostMount, ...]:
        return self._files.mounts

    @property
    def allowed_host_roots(self) -> tuple[os.PathLike[str] | str, ...]:
        return self._files.allowed_host_roots

    @property
    def temp_dir(self) -> Path:
        """The temporary directory with copies of the files. Reading this copies them."""
        return self._files.copy()

    @property
    def mount_previews(self) -> tuple[HostMountPreview, ...]:
        """What each mount copied, or will copy."""
        return self._files.previews

    @property
    def filesystem(self) -> ContainerFilesystem:
        """The files in the container, which is created on first use."""
        return self._filesystem

    @property
    def container_id(self) -> str | None:
        """The id of the container; None before one exists."""
        return self._filesystem.container_id

    def resources(self) -> ResourceRegistry:
        return ResourceRegistry({Filesystem: self._filesystem})

    def render(self, params: SupportsDataclass | None, depth: int, number: str) -> str:
        _ = params
        mounted = {
            preview.mount_path if not preview.is_directory else f"{preview.mount_path}/{entry}".removeprefix("./")
            for preview in self.mount_previews
            for entry in preview.entries
        }
        others = [path for path in self._filesystem.known_paths() if path not in mounted]
        text = describe(self.mount_previews, CONTAINER_ROOT, others) or "There are no files yet."
        return super().render(_WorkspaceSectionParams(text), depth, number)

    def clone(self, **kwargs: object) -> Self:
        """A separate workspace with the same arguments, except for those given."""
        arguments: dict[str, Any] = {name: kwargs.pop(name, getattr(self, name)) for name in _WORKSPACE_ARGUMENTS}
        others = {name: kwargs.pop(name, getattr(self, name)) for name in _SECTION_ARGUMENTS}
        others["tools"] = kwargs.pop("tools", self.tools())
        with warnings.catch_warnings():  # this workspace has warned already
            warnings.filterwarnings("ignore", message=re.escape(_NO_RESULTS_DIR))
            created = type(self)(**arguments)
        return super(OpenAIContainerWorkspaceSection, created).clone(**others, template=self.template, **kwargs)

    # ── `ContainerSource` ────────────────────────────────────────────────────────────────────────────────────────────

    def open_container(self, scope: EvaluationScope) -> str:
        """Open the container with the files in it."""
        container_id = self._filesystem.ensure_container(scope)
        self._filesystem.expect_changes()
        return container_id

    def container_expired(self, container_id: str, scope: EvaluationScope) -> None:
        """Replace the container on the next `open_container`."""
        _ = scope
        self._filesystem.manager.report_gone(ContainerGone(container_id, "a response reported that it expired"))

    def container_used(self, container_id: str, scope: EvaluationScope, *, has_run_code: bool) -> None:
        """List the files that code has changed. A failure is logged, and the files are listed on their next use."""
        if not has_run_code:
            self._filesystem.retract_change()
            return
        try:
            self._filesystem.refresh_after_request(container_id, scope)
        except (ProviderFault, FilesystemError) as error:
            _logger.warning("the files of container %s could not be listed after a turn: %s", container_id, error)

    def container_note(self, *, replaced: bool) -> str | None:
        """Files at other paths than in the prompt, and files that were lost with a replaced container."""
        notes = [self._relocation_note(), self._loss_note() if replaced else None]
        return "\n\n".join(note for note in notes if note) or None

    def _relocation_note(self) -> str | None:
        moved = self._filesystem.relocated()
        if not moved:
            return None
        if len(moved) <= _MAX_NOTE_PATHS:
            lines = "\n".join(f"- `{path}` is `{CONTAINER_ROOT}/{remote}`" for path, remote in sorted(moved.items()))
            return f"Some files of the workspace do not lie where their paths say:\n{lines}"
        full = {path: f"{CONTAINER_ROOT}/{remote}" for path, remote in sorted(moved.items())}
        self._filesystem.write_text(_PATH_MAP_FILE, json.dumps(full, ensure_ascii=False, indent=1))
        remote = self._filesystem.relocated().get(_PATH_MAP_FILE, _PATH_MAP_FILE)
        return (
            "Files of the workspace do not lie where their paths say. "
            f"`{CONTAINER_ROOT}/{remote}` is a JSON object that maps each path to where it is."
        )

    def _loss_note(self) -> str | None:
        recreated = self._filesystem.recreated
        if recreated is None:
            return None
        lost = ", ".join(f"`{path}`" for path in recreated.lost[:_MAX_NOTE_PATHS]) or "none that are known"
        return (
            "The container was replaced by a new one. The files of the workspace are there again as they were last "
            f"saved; variables are gone, and so are the changes that code made to these files: {lost}."
        )

    # ── sync and cleanup ─────────────────────────────────────────────────────────────────────────────────────────────

    def sync(self) -> WorkspaceSynced:
        """Download all changes in the container into `temp_dir`; return what changed there."""
        if self._is_closed:
            raise WorkspaceError("this workspace was cleaned up; sync it before")
        return self._filesystem.sync()

    def cleanup(self) -> None:
        """Sync if `sync_on_cleanup` is set, delete the container, and remove the temporary directory in any case.

        With `ContainerConfig(delete_on_cleanup=False)` the container is kept until it expires; `container_id` is still
        its id. If the sync fails, it is kept too, so that its files can still be downloaded, and the error is raised
        after the rest is done. A second call does nothing.
        """
        if self._is_closed:
            return
        self._is_closed = True
        is_saved = not self.sync_on_cleanup
        try:
            if self.sync_on_cleanup:
                self._save_results()
                is_saved = True
        finally:
            try:
                self._filesystem.cleanup(keep_container=not is_saved)
            finally:
                self._files.remove()

    def _save_results(self) -> None:
        manager = self._filesystem.manager
        with manager.lock:
            if manager.container_id is None:
                return
            if not manager.check():  # do not create a container only to download from it
                lost = self._filesystem.dirty_paths()
                _logger.warning("the container was gone before its files could be synced; lost: %s", list(lost))
                self.session.dispatch(WorkspaceSynced(container_id=None, directory=self.temp_dir, lost=lost))
            else:
                self._filesystem.sync()
            if self.results_dir is not None:
                self._copy_results(self.results_dir)

    def _copy_results(self, target: Path) -> None:
        try:
            target.mkdir(parents=True, exist_ok=True)
            self._filesystem.copy_results(HostFilesystem(target))
        except OSError as error:
            raise WorkspaceError(
                f"the results cannot be written to {str(target)!r}: {error}. They are still in container "
                f"{self.container_id}, until it expires"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            self.cleanup()
        except WinkError:
            if error is None:
                raise
            _logger.exception("the cleanup of the workspace failed after an error")
