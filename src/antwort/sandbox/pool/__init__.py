"""The pool of warm zygotes that containers are forked from.

`pool` (creates containers), `zygote_process` (one zygote on the server's side), `preload` (the Python and the packages
that a zygote imports ahead), `watchdog` (memory and socket limits).
"""

from __future__ import annotations

__all__: list[str] = []
