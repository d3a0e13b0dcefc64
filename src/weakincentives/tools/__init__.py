"""Ready sections that bring their tools along, and the mounts that workspaces are made from. Asks no model."""

from __future__ import annotations

from weakincentives.filesystem import HostMount, VfsPath
from weakincentives.tools.vfs import VfsToolsSection

__all__ = ["HostMount", "VfsPath", "VfsToolsSection"]
