"""`VfsToolsSection`: file tools over any `Filesystem`."""

from __future__ import annotations

from typing import Self, cast

from weakincentives.filesystem import Filesystem
from weakincentives.prompt import Section, SupportsDataclass
from weakincentives.resources import ResourceRegistry
from weakincentives.tools.file_tools import FileTools

_BODY = """\
You work on files through tools. Paths are relative to the root of the workspace, with `/` between names.

- Look around with `ls`, `glob` (by name) and `grep` (by content) before you read.
- Read a file with `read_file` before you change it.
- Change a part of a file with `edit_file`; create or replace a whole file with `write_file`; remove with `rm`.
- A call that fails has changed nothing; its message says what to do."""


class VfsToolsSection(Section[None]):
    """Tools `ls`, `read_file`, `write_file`, `edit_file`, `glob`, `grep` and `rm`.

    The tools use `filesystem`, which is also available to other tools as `context.filesystem`. Without it they use the
    filesystem of the evaluation, from a workspace section or from the caller.
    """

    def __init__(
        self,
        *,
        filesystem: Filesystem | None = None,
        title: str = "Files",
        key: str = "files",
        accepts_overrides: bool = False,
    ) -> None:
        self.filesystem = filesystem
        super().__init__(title=title, key=key, tools=FileTools(filesystem).tools(), accepts_overrides=accepts_overrides)

    def render(self, params: SupportsDataclass | None, depth: int, number: str) -> str:
        _ = params, depth, number
        return _BODY

    def resources(self) -> ResourceRegistry:
        if self.filesystem is None:
            return ResourceRegistry()
        return ResourceRegistry({Filesystem: self.filesystem})

    def clone(self, **kwargs: object) -> Self:
        if "filesystem" in kwargs:  # the tools hold the filesystem
            filesystem = cast("Filesystem | None", kwargs["filesystem"])
            kwargs.setdefault("tools", FileTools(filesystem).tools())
        return super().clone(**kwargs)
