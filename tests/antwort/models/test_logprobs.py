from __future__ import annotations

import pytest

from antwort.models.logprobs import parse_logprobs


def test_missing_fields_are_filled_in():
    entries = [
        {"token": "é", "logprob": -0.5, "bytes": None, "top_logprobs": [{"token": "e", "logprob": -1, "extra": 1}]},
        {"token": "x", "logprob": -1.5, "bytes": [120]},
    ]

    assert parse_logprobs(entries, 5) == (
        {
            "token": "é",
            "bytes": [195, 169],
            "logprob": -0.5,
            "top_logprobs": [{"token": "e", "bytes": [101], "logprob": -1.0}],
        },
        {"token": "x", "bytes": [120], "logprob": -1.5, "top_logprobs": []},
    )


def test_top_logprobs_are_limited_to_the_requested_number():
    top = [{"token": str(rank), "logprob": -float(rank)} for rank in range(20)]
    entries = [{"token": "0", "logprob": 0.0, "top_logprobs": top}]

    assert [len(parse_logprobs(entries, max_top)[0]["top_logprobs"]) for max_top in (0, 3, 20)] == [0, 3, 20]
    assert parse_logprobs(entries, None) == ()


@pytest.mark.parametrize(
    "entries", [None, {}, "x", [1], [{"token": 1}], [{"token": "x"}], [{"token": "x", "logprob": "y"}]]
)
def test_invalid_entries_are_dropped(entries):
    assert parse_logprobs(entries, 2) == ()
