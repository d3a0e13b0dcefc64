"""What every `Store` must do, as tests that any implementation can run.

pytest with anyio's plugin collects them from a subclass that opens the store under test:

    import pytest
    from antwort.testing.store import StoreConformance

    @pytest.mark.anyio
    class TestMyStore(StoreConformance):
        async def open(self, place):
            return await MyStore.opened(place / "my.db")

`place` is pytest's `tmp_path`: a directory, new for each test. The same place opened again is the same store, with
all that was written to it; another place is another store. The assertions are plain `AssertionError`s with both
sides in the message.
"""

from __future__ import annotations

from antwort.testing.store.containers import ContainerConformance
from antwort.testing.store.conversations import ConversationConformance
from antwort.testing.store.files import FileConformance
from antwort.testing.store.responses import ResponseConformance

__all__ = [
    "ContainerConformance",
    "ConversationConformance",
    "FileConformance",
    "ResponseConformance",
    "StoreConformance",
]


class StoreConformance(ResponseConformance, ConversationConformance, FileConformance, ContainerConformance):
    """Subclass it, and let `open` open the store at a place."""
