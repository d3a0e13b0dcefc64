"""Storage: persistent stores for responses, conversations, files and containers.

`open_store` opens a store by its URL, `inspect_store` checks it without changing anything. `antwort.testing.store`
has the conformance tests for every implementation of `Store`.
"""

from __future__ import annotations

from antwort.storage.errors import UnusableStore
from antwort.storage.factory import display_url, inspect_store, open_store
from antwort.storage.sqlite.store import SqliteStore

__all__ = ["SqliteStore", "UnusableStore", "display_url", "inspect_store", "open_store"]
