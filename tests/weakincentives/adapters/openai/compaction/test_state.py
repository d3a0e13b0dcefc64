from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from weakincentives.adapters.openai import CompactionState, TranscriptItem
from weakincentives.runtime import Session


def test_fields_of_the_specification_come_first_and_have_defaults():
    state = CompactionState()

    assert (state.encrypted_items, state.last_compaction_tokens, state.compaction_count) == ((), 0, 0)
    assert CompactionState(({"type": "compaction"},), 9, 1).tokens_before == 9
    with pytest.raises(FrozenInstanceError):
        state.compaction_count = 2  # pyright: ignore[reportAttributeAccessIssue] - the point


def test_both_slices_are_state():
    session = Session()
    before = session.snapshot()
    session[CompactionState].seed(CompactionState(compaction_count=1))
    session[TranscriptItem].append(TranscriptItem({"type": "message"}))

    session.restore(before)

    assert (session[CompactionState].all(), session[TranscriptItem].all()) == ((), ())
