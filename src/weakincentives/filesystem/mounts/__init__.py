"""Host mounts: declaration (`mount`), planning (`plan`) and copying (`copy`) of host files into a workspace."""

from __future__ import annotations

__all__: list[str] = []
