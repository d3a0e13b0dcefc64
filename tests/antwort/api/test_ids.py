from __future__ import annotations

from antwort.api.ids import new_id, well_formed


def test_ids_are_prefixed_long_and_never_the_same():
    made = {new_id("resp_") for _ in range(1000)}

    assert len(made) == 1000
    assert all(one.startswith("resp_") and len(one) == len("resp_") + 32 for one in made)
    assert all(map(well_formed, made))
    assert well_formed(new_id("file-"))


def test_what_cannot_be_an_id_is_known_at_once():
    for wrong in ("", "resp_", "../etc/passwd", "resp_a b", "resp_" + "a" * 200, "resp_\0", "resp_a\n"):
        assert not well_formed(wrong)
