"""What every `Store` must do, as tests that any implementation can run.

pytest with anyio's plugin collects them from a subclass that opens the store under test:

    import pytest
    from antwort.storage.conformance import StoreConformance

    @pytest.mark.anyio
    class TestMyStore(StoreConformance):
        async def open(self, place):
            return await MyStore.opened(place / "my.db")

`place` is pytest's `tmp_path`: a directory, new for each test. The same place opened again is the same store, with
all that was written to it; another place is another store. The assertions are plain `AssertionError`s with both
sides in the message.
"""

from __future__ import annotations

from pathlib import Path

from antwort.engine.ports import ConversationRecord
from antwort.storage.conformance.base import OURS, equal
from antwort.storage.conformance.containers import ContainerConformance
from antwort.storage.conformance.conversations import ConversationConformance
from antwort.storage.conformance.files import FileConformance
from antwort.storage.conformance.responses import ResponseConformance

__all__ = [
    "ContainerConformance",
    "ConversationConformance",
    "FileConformance",
    "ResponseConformance",
    "StoreConformance",
]


class StoreConformance(ResponseConformance, ConversationConformance, FileConformance, ContainerConformance):
    """Subclass it, and let `open` open the store at a place."""

    async def test_a_trial_changes_nothing(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            record = ConversationRecord("conv_1", 1, {})
            await store.create_conversation(OURS, record, [])
            await store.try_to_write()
            equal(await store.get_conversation(OURS, "conv_1"), record)
        async with self.store(tmp_path) as store:
            equal(await store.get_conversation(OURS, "conv_1"), record)
