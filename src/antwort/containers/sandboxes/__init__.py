"""Where the code of containers runs: one port (`port`), one client (`client`), and the places that give sandboxes."""

from __future__ import annotations

__all__: list[str] = []
