"""One container on the server's side.

`container` (life cycle), `channel` (control channel), `pipes` and `capture` (standard output and error), `call` (one
call in progress), `reply` (its result, validated).
"""

from __future__ import annotations

__all__: list[str] = []
