"""What the sandbox needs of its host: isolation probe, bubblewrap, cgroups, dropping root, processes."""

from __future__ import annotations

__all__: list[str] = []
