"""The sandbox server: the base protocol (`/execute`, `/health`) and sessions, over HTTP.

Path of a request: `antwort.net.connections` (connection limits) → `auth` → `app` (routes, errors) → `execute` or
`sessions` → the pool → a container.
"""

from __future__ import annotations

from .app import make_app
from .settings import SandboxSettings

__all__ = ["SandboxSettings", "make_app"]
