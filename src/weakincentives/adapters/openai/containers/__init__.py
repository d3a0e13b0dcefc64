"""Containers API of OpenAI: `ContainerFilesystem` over `RemoteFiles` over `ContainerManager` over `ContainerApi`."""

from __future__ import annotations

__all__: list[str] = []
