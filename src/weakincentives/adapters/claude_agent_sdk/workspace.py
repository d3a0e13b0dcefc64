"""`ClaudeAgentWorkspaceSection`: copies of host files as the working directory of Claude's tools.

It takes the same mounts as `OpenAIContainerWorkspaceSection`, and the evaluations of a prompt with it run in its
directory.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any, Self

from weakincentives.errors import WorkspaceError
from weakincentives.filesystem import Filesystem, HostFilesystem, HostMount, HostMountPreview
from weakincentives.prompt import MarkdownSection, SupportsDataclass
from weakincentives.resources import ResourceRegistry
from weakincentives.runtime import Session
from weakincentives.tools.workspace import MountedFiles, describe

PROVIDER = "claude_agent_sdk"

CLI_DIRECTORY = ".claude"
"""Settings of a project, which the CLI does not load; it may create the directory, with nothing of use in it."""

_WORKSPACE_ARGUMENTS = ("session", "mounts", "allowed_host_roots", "accepts_overrides")
_SECTION_ARGUMENTS = ("title", "key", "children", "enabled", "summary", "visibility")

_TEMPLATE = """\
Your files are in the working directory, and paths are relative to it. Whatever you leave there is kept; nothing else
is.

${mounts}"""


@dataclass(frozen=True)
class _WorkspaceSectionParams:
    mounts: str = ""


class ClaudeAgentWorkspaceSection(MarkdownSection[_WorkspaceSectionParams]):
    """A prompt section with host files in the working directory of Claude's tools.

    Rendering plans the mounts: it lists their directories and reads no file. The files are copied to a temporary
    directory by an evaluation or by the first use of `filesystem` or `temp_dir`; mounted folders are never written to.
    `cleanup`, or the end of a `with` block, removes the directory.
    """

    required_provider = PROVIDER

    def __init__(
        self,
        *,
        session: Session,
        mounts: Sequence[HostMount] = (),
        allowed_host_roots: Sequence[os.PathLike[str] | str] = (),
        accepts_overrides: bool = False,
    ) -> None:
        self.session = session
        self._files = MountedFiles(mounts, allowed_host_roots)
        self._filesystem: HostFilesystem | None = None
        self._has_cli_directory = False
        self._lock = RLock()
        super().__init__(title="Workspace", key="workspace", template=_TEMPLATE, accepts_overrides=accepts_overrides)

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
    def filesystem(self) -> HostFilesystem:
        """The files of the workspace, which are copied on first use."""
        with self._lock:
            if self._filesystem is None:
                directory = self._files.copy()
                if not self._files.is_copied:
                    raise WorkspaceError("this workspace was cleaned up; make a new one")
                self._filesystem = HostFilesystem(directory)
                self._has_cli_directory = (directory / CLI_DIRECTORY).exists()
            return self._filesystem

    def resources(self) -> ResourceRegistry:
        return ResourceRegistry({Filesystem: self.filesystem})

    def render(self, params: SupportsDataclass | None, depth: int, number: str) -> str:
        _ = params
        text = describe(self.mount_previews, ".") or "There are no files yet."
        return super().render(_WorkspaceSectionParams(text), depth, number)

    def clone(self, **kwargs: object) -> Self:
        """A separate workspace with the same arguments, except for those given."""
        arguments: dict[str, Any] = {name: kwargs.pop(name, getattr(self, name)) for name in _WORKSPACE_ARGUMENTS}
        others = {name: kwargs.pop(name, getattr(self, name)) for name in _SECTION_ARGUMENTS}
        others["tools"] = kwargs.pop("tools", self.tools())
        created = type(self)(**arguments)
        return super(ClaudeAgentWorkspaceSection, created).clone(**others, template=self.template, **kwargs)

    def remove_cli_directory(self) -> None:
        """Remove the directory that sandboxed commands leave in the working directory, unless it was mounted."""
        with self._lock:
            if self._files.is_copied and not self._has_cli_directory and self.filesystem.exists(CLI_DIRECTORY):
                self.filesystem.delete(CLI_DIRECTORY, recursive=True)

    def cleanup(self) -> None:
        """Remove the temporary directory. A second call does nothing."""
        self._files.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cleanup()
