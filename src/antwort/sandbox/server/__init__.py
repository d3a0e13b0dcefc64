"""The sandbox server: the base protocol (`/execute`, `/health`) and sessions, over HTTP.

Follow one request: `connections` (how many, how long) → `door` (who is let in) → `app` (routes, errors) → `execute` or
`sessions` → the pool → a container, and back.
"""

from __future__ import annotations

from .app import make_app
from .settings import SandboxSettings

__all__ = ["SandboxSettings", "make_app"]
