"""The keys of items: what OpenAI does not always send may be missing, unless the check is strict."""

from __future__ import annotations

import pytest

from antwort.conformance.grammar import Violation
from antwort.conformance.grammar.items import check_item_keys

SEARCH = {"id": "ws_1", "type": "web_search_call", "status": "completed"}


@pytest.mark.parametrize(
    "action",
    [{"type": "search", "queries": ["tea"]}, {"type": "open_page"}, {"type": "find_in_page", "pattern": "tea"}],
)
def test_the_query_and_the_url_of_a_web_search_may_be_missing(action):
    check_item_keys({**SEARCH, "action": action})
    with pytest.raises(Violation):
        check_item_keys({**SEARCH, "action": action}, strict=True)


@pytest.mark.parametrize("action", [None, {}, {"type": "other"}, {"type": "find_in_page"}, "search"])
def test_other_actions_are_refused(action):
    with pytest.raises(Violation):
        check_item_keys({**SEARCH, "action": action})
