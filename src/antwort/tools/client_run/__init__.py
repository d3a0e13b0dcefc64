"""Tools that the client runs, for any model: patches, local shells and computers."""

from __future__ import annotations

from antwort.tools.client_run.provider import ClientRunProvider, LocalShellProvider
from antwort.tools.client_run.shell import prepare_local

__all__ = ["ClientRunProvider", "LocalShellProvider", "prepare_local"]
