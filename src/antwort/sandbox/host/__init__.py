"""What the sandbox uses of its host.

`probe` (which protections the host has), `bubblewrap` (the zygote's command line), `drop_root` (bind mounts and setuid
before bubblewrap), `cgroups` (v1 and v2), `process` (process handles), `parent` (exit with the parent process).
"""

from __future__ import annotations

__all__: list[str] = []
