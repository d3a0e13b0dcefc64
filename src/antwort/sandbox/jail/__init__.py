"""The code that runs inside the jail. Standard library only; imports nothing of the server and sets no policy.

Read in this order: `zygote` (forks), `child` (setup of one container), then one module per layer (`namespaces`,
`mounts`, `landlock`, `seccomp`, `privileges`, `rlimits`), then `runner` (runs the user's code) and `figures`. `wire` is
the frame codec of the control channel, `syscalls` the raw system calls.
"""

from __future__ import annotations

__all__: list[str] = []
