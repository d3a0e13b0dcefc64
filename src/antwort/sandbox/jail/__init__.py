"""What runs inside the jail. Standard library only; imports nothing of the server, decides nothing about policy.

Read in this order: `zygote` (forks), `child` (the story of one container's first milliseconds), then one module per
layer (`namespaces`, `mounts`, `landlock`, `seccomp`, `privileges`, `rlimits`), then `runner` (runs the user's code).
"""

from __future__ import annotations

__all__: list[str] = []
