from __future__ import annotations

from antwort.api.ids import new_id


def test_ids_are_prefixed_and_unique():
    ids = {new_id("resp_") for _ in range(1000)}

    assert len(ids) == 1000
    assert all(identifier.startswith("resp_") and len(identifier) == len("resp_") + 32 for identifier in ids)
