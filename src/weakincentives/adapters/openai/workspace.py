"""`OpenAIContainerWorkspaceSection`: folders of this machine, inside the container that the model's code runs in.

The section takes part in an evaluation as a `ContainerSource`: it has the container made and filled before the first
request, looks at what code has done in it after every answer, and makes another where one has expired.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from weakincentives.adapters.openai.config import ContainerConfig
from weakincentives.adapters.openai.containers.api import PLACE, ContainerGone
from weakincentives.adapters.openai.containers.filesystem import ContainerFilesystem
from weakincentives.adapters.openai.containers.manager import manager_for
from weakincentives.adapters.openai.containers.source import ContainerVisit
from weakincentives.errors import FilesystemError, ProviderFault, WinkError, WorkspaceError
from weakincentives.filesystem import Filesystem, HostFilesystem, HostMount, HostMountPreview
from weakincentives.prompt import MarkdownSection, SupportsDataclass
from weakincentives.resources import ResourceRegistry
from weakincentives.runtime import Session, WorkspaceSynced
from weakincentives.tools.workspace import MountedFiles, describe

if TYPE_CHECKING:
    from openai import OpenAI

_logger = logging.getLogger(__name__)

_MOST_PLACES_TOLD = 50
_MANIFEST = "workspace-places.json"
_ARGUMENTS = (
    *("session", "mounts", "allowed_host_roots", "container_config", "sync_on_cleanup", "accepts_overrides"),
    *("client", "results_dir"),
)
_OF_SECTIONS = ("title", "key", "children", "enabled", "summary", "visibility")

_GUIDE = """\
Your files are in the container of the `python` tool, below `/mnt/data`. A path such as `a/b` means `/mnt/data/a/b`.
Read and change them there with code. Whatever you leave below `/mnt/data` is kept; nothing else is.

${mounts}"""


@dataclass(frozen=True)
class _WorkspaceSectionParams:
    mounts: str = ""


class OpenAIContainerWorkspaceSection(MarkdownSection[_WorkspaceSectionParams]):
    """A prompt section that brings host files into the container that code interpreter (or a hosted shell) works in.

    Nothing is copied before the files are needed, and no container made before one is: by an evaluation, or by the
    first use of `filesystem`. Everything ends with `cleanup`, or at the end of a `with` block.

    `client` is for use before any evaluation, which brings its own; without one it is made from the environment.
    `sync_on_cleanup` brings back what is in the container before it goes. As the temporary directory goes as well,
    `results_dir` is where that is then left: every file that is new, or that was changed since it was mounted.
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
        files = self._files  # and not the section: what a session shares must not hold on to the session
        self._filesystem = ContainerFilesystem(
            manager=manager_for(session, self.container_config, client), local_root=lambda: files.directory
        )
        self._is_over = False
        super().__init__(title="Workspace", key="workspace", template=_GUIDE, accepts_overrides=accepts_overrides)

    # ── what there is ────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def mounts(self) -> tuple[HostMount, ...]:
        return self._files.mounts

    @property
    def allowed_host_roots(self) -> tuple[os.PathLike[str] | str, ...]:
        return self._files.allowed_host_roots

    @property
    def temp_dir(self) -> Path:
        """The directory with our copy of the files."""
        return self._files.directory

    @property
    def mount_previews(self) -> tuple[HostMountPreview, ...]:
        """What became of each mount."""
        return self._files.previews

    @property
    def filesystem(self) -> ContainerFilesystem:
        """The files in the container. It is made when they are first used."""
        return self._filesystem

    @property
    def container_id(self) -> str | None:
        """The container's id; None before there is one."""
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
        told = describe(self.mount_previews, PLACE, others) or "There are no files yet."
        return super().render(_WorkspaceSectionParams(told), depth, number)

    def clone(self, **kwargs: object) -> Self:
        """A workspace of its own, with the same arguments but for these."""
        arguments: dict[str, Any] = {name: kwargs.pop(name, getattr(self, name)) for name in _ARGUMENTS}
        others = {name: kwargs.pop(name, getattr(self, name)) for name in _OF_SECTIONS}
        others["tools"] = kwargs.pop("tools", self.tools())
        made = type(self)(**arguments)
        return super(OpenAIContainerWorkspaceSection, made).clone(**others, template=self.template, **kwargs)

    # ── its part in an evaluation ────────────────────────────────────────────────────────────────────────────────────

    def open_container(self, visit: ContainerVisit) -> str:
        """A container with the files in it, for the model to work in."""
        with self._filesystem.manager.visiting(visit.client, visit.session, visit.deadline):
            container = self._filesystem.ensure_container()
            self._filesystem.expect_changes()
            return container

    def container_expired(self, container_id: str, visit: ContainerVisit) -> None:
        """The next one will be another."""
        with self._filesystem.manager.visiting(visit.client, visit.session, visit.deadline):
            gone = ContainerGone(container_id, "a response said that it is gone")
            self._filesystem.manager.report_gone(gone)

    def container_used(self, container_id: str, visit: ContainerVisit) -> None:
        """Look at what code has left. The answer that came is not lost where that fails: then it is looked at later."""
        if not visit.ran:
            self._filesystem.nothing_changed()
            return
        with self._filesystem.manager.visiting(visit.client, visit.session, visit.deadline):
            try:
                self._filesystem.look_again(container_id)
            except (ProviderFault, FilesystemError) as error:
                _logger.warning("container %s could not be looked at after a turn: %s", container_id, error)

    def container_note(self, *, replaced: bool) -> str | None:
        """What the prompt could not say: that files lie elsewhere, or that another container is gone."""
        notes = [self._told_places(), self._told_loss() if replaced else None]
        return "\n\n".join(note for note in notes if note) or None

    def _told_places(self) -> str | None:
        places = self._filesystem.elsewhere()
        if not places:
            return None
        if len(places) <= _MOST_PLACES_TOLD:
            lines = "\n".join(f"- `{path}` is `{PLACE}/{place}`" for path, place in sorted(places.items()))
            return f"Some files of the workspace do not lie where their paths say:\n{lines}"
        full = {path: f"{PLACE}/{place}" for path, place in sorted(places.items())}
        self._filesystem.write_text(_MANIFEST, json.dumps(full, ensure_ascii=False, indent=1))
        where = self._filesystem.elsewhere().get(_MANIFEST, _MANIFEST)
        return (
            "Files of the workspace do not lie where their paths say. "
            f"`{PLACE}/{where}` is a JSON object that maps each path to where it is."
        )

    def _told_loss(self) -> str | None:
        recreated = self._filesystem.manager.recreated
        if recreated is None:
            return None
        lost = ", ".join(f"`{path}`" for path in recreated.lost[:_MOST_PLACES_TOLD]) or "none that we know of"
        return (
            "The container was replaced by a new one. The files of the workspace are there again as we had them; "
            f"variables are gone, and so is what code made of these files: {lost}."
        )

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def sync(self) -> WorkspaceSynced:
        """Bring everything in the container back into `temp_dir`, and say what changed there."""
        if self._is_over:
            raise WorkspaceError("this workspace was cleaned up; sync it before")
        return self._filesystem.sync()

    def cleanup(self) -> None:
        """Sync if that was asked for, delete the container, and remove the temporary directory in any case.

        Where the sync fails the container is left as it is, so that its files can still be had, and the error raised
        when everything else is done. Done twice, it is done once.
        """
        if self._is_over:
            return
        self._is_over = True
        is_safe = not self.sync_on_cleanup
        try:
            if self.sync_on_cleanup:
                self._bring_back()
                is_safe = True
        finally:
            try:
                self._filesystem.cleanup(keep_container=not is_safe)
            finally:
                self._files.remove()

    def _bring_back(self) -> None:
        manager = self._filesystem.manager
        with manager.lock:
            if manager.container_id is None:
                return
            if not manager.check():  # one that is gone is not made again only to be emptied
                lost = self._filesystem.unsaved()
                _logger.warning("the container was gone before its files could be synced; lost: %s", list(lost))
                manager.tell(WorkspaceSynced(container_id=None, directory=self.temp_dir, lost=lost))
            else:
                self._filesystem.sync()
            if self.results_dir is not None:
                self._leave_results(self.results_dir)

    def _leave_results(self, target: Path) -> None:
        try:
            target.mkdir(parents=True, exist_ok=True)
            self._filesystem.copy_results(HostFilesystem(target))
        except OSError as error:
            raise WorkspaceError(
                f"the results cannot be left in {str(target)!r}: {error}. They are still in container "
                f"{self.container_id}, until it expires"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.cleanup()
        except WinkError:
            if error is None:
                raise
            _logger.exception("the workspace could not be cleaned up after an error")
