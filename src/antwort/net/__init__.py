"""HTTP and stream primitives shared by the server and the sandbox server. Imports nothing else of `antwort`."""

from __future__ import annotations

__all__: list[str] = []
