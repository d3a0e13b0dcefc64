"""Host mounts: declaration, planning and copying of host files into a workspace."""

from __future__ import annotations

__all__: list[str] = []
