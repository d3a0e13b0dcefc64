"""Log of the changes of a response: completes each step of its checkpoint with what is new since the last one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from antwort.api.items import Raw
from antwort.engine.checkpoint.state import Checkpoint
from antwort.engine.checkpoint.steps import HistoryEntry, Step, Totals


def copied(totals: Totals) -> Totals:
    """A copy that does not change with them."""
    lists = {name: [*getattr(totals, name)] for name in ("repaired", "withdrawn", "only")}
    return msgspec.structs.replace(totals, **lists)


class StepLog:
    """The changes of one response since its last step. Only a background response has steps: others do not continue."""

    def __init__(self, *, is_kept: bool) -> None:
        self.is_kept = is_kept
        self._saved_items = 0
        self._history: list[HistoryEntry] = []

    def continue_from(self, checkpoint: Checkpoint) -> None:
        """The stored steps have all of this checkpoint."""
        self._saved_items = len(checkpoint.items)

    def add_history(self, entries: Iterable[HistoryEntry]) -> None:
        """Note what was appended to the history of the model."""
        if self.is_kept:
            self._history += entries

    def complete(self, step: Step, output: Sequence[Raw], end: int | None = None) -> Step | None:
        """The step with the output items that have ended, those before `end`, and with what the history has gained."""
        if not self.is_kept:
            return None
        end = len(output) if end is None else end
        added, self._history = self._history, []
        first, self._saved_items = self._saved_items, end
        return msgspec.structs.replace(
            step,
            totals=copied(step.totals),
            items=[*output[first:end]],
            history=[] if step.compaction is not None else added,  # the window has replaced what was added
        )
