"""Conformance tests for implementations of `Store`.

pytest with anyio's plugin collects them from a subclass that opens the store under test:

    import pytest
    from antwort.testing.store import StoreConformance

    @pytest.mark.anyio
    class TestMyStore(StoreConformance):
        async def open(self, directory):
            return await MyStore.open(directory / "my.db")

A store that several processes may open at a time, one with `Store.replicas`, inherits from `ReplicaConformance` too.

`directory` is pytest's `tmp_path`, new for each test. Opening the same directory again must open the same store with
all its data; another directory is another store. Assertions are plain `AssertionError`s with both values in the
message.
"""

from __future__ import annotations

from antwort.testing.store.containers import ContainerConformance
from antwort.testing.store.conversations import ConversationConformance
from antwort.testing.store.files import FileConformance
from antwort.testing.store.replicas import ReplicaConformance
from antwort.testing.store.responses import ResponseConformance
from antwort.testing.store.skills import SkillConformance

__all__ = [
    "ContainerConformance",
    "ConversationConformance",
    "FileConformance",
    "ReplicaConformance",
    "ResponseConformance",
    "SkillConformance",
    "StoreConformance",
]


class StoreConformance(
    ResponseConformance, ConversationConformance, FileConformance, ContainerConformance, SkillConformance
):
    """All conformance tests. Subclass it and implement `open`."""
