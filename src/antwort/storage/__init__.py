"""Where responses, conversations, files and containers are kept: the doors to the stores, and what every store must do.

`open_store` opens one by its address, `look_at_store` only looks at it. `conformance` holds the tests
that each of them passes, and a stranger's too.
"""

from __future__ import annotations

from antwort.storage.errors import UnusableStore
from antwort.storage.factory import look_at_store, open_store
from antwort.storage.sqlite.store import SqliteStore

__all__ = ["SqliteStore", "UnusableStore", "look_at_store", "open_store"]
