from __future__ import annotations

import pytest

from antwort.models.logprobs import parse_logprobs


def test_the_form_of_the_wire_whatever_was_left_out():
    told = [
        {"token": "é", "logprob": -0.5, "bytes": None, "top_logprobs": [{"token": "e", "logprob": -1, "extra": 1}]},
        {"token": "x", "logprob": -1.5, "bytes": [120]},
    ]

    assert parse_logprobs(told, 5) == (
        {
            "token": "é",
            "bytes": [195, 169],
            "logprob": -0.5,
            "top_logprobs": [{"token": "e", "bytes": [101], "logprob": -1.0}],
        },
        {"token": "x", "bytes": [120], "logprob": -1.5, "top_logprobs": []},
    )


def test_no_more_than_were_asked_for():
    likely = [{"token": str(at), "logprob": -float(at)} for at in range(20)]
    told = [{"token": "0", "logprob": 0.0, "top_logprobs": likely}]

    assert [len(parse_logprobs(told, most)[0]["top_logprobs"]) for most in (0, 3, 20)] == [0, 3, 20]
    assert parse_logprobs(told, None) == ()


@pytest.mark.parametrize(
    "told", [None, {}, "x", [1], [{"token": 1}], [{"token": "x"}], [{"token": "x", "logprob": "y"}]]
)
def test_what_makes_no_sense_is_left_out(told):
    assert parse_logprobs(told, 2) == ()
