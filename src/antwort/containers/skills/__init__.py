"""Skills: folders with instructions (`SKILL.md`) and files, which a container gets read-only.

`bundle` reads their archives, which are hostile input; `library` stores and finds them.
"""

from __future__ import annotations

__all__: list[str] = []
