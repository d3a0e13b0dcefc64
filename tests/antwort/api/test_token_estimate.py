from __future__ import annotations

import pytest

from antwort.api.items import read
from antwort.api.token_estimate import TokenEstimator, estimate_item, estimate_text


@pytest.mark.parametrize(
    "text, low, high",
    [
        ("", 0, 0),
        ("Hello", 1, 2),
        ("The quick brown fox jumps over the lazy dog. " * 20, 160, 260),
        ("Быстрая лиса прыгает. " * 10, 60, 150),
        ("敏捷的棕色狐狸跳过了懒狗。" * 10, 80, 160),
        ("🎈" * 10, 8, 40),
    ],
)
def test_estimate_text(text, low, high):
    assert low <= estimate_text(text) <= high


def test_the_estimate_does_not_depend_on_fragments():
    estimator, text = TokenEstimator(), "Grüße, 世界! How are you? " * 7
    for char in text:
        estimator.add(char)

    assert estimator.tokens == estimate_text(text)


def test_reasoning_counts_once_whether_it_is_content_or_summary_or_both():
    text = "The user greets me, so I greet back."
    summary, content = [{"type": "summary_text", "text": text}], [{"type": "reasoning_text", "text": text}]
    items = [
        {"type": "reasoning", "summary": summary},
        {"type": "reasoning", "summary": [], "content": content},
        {"type": "reasoning", "summary": summary, "content": content, "encrypted_content": "gAAAA" * 99},
    ]

    assert len({estimate_item(read(item)) for item in items}) == 1
