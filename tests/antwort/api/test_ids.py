from __future__ import annotations

from antwort.api.ids import new_id


def test_ids_are_prefixed_long_and_never_the_same():
    made = {new_id("resp_") for _ in range(1000)}

    assert len(made) == 1000
    assert all(one.startswith("resp_") and len(one) == len("resp_") + 32 for one in made)
