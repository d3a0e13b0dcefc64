"""Files of a container, accessed from outside.

`tree` (file operations that never follow links), `archive` and `tar` (a directory as one tar), `quota` (disk usage of
directories on the host).
"""

from __future__ import annotations

__all__: list[str] = []
