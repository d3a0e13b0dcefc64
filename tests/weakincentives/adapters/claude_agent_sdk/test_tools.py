from __future__ import annotations

from weakincentives.adapters.claude_agent_sdk.tools import MAX_RESULT_CHARACTERS, CallIds, shorten


def test_ids_are_taken_by_name_and_arguments_in_order():
    ids = CallIds()
    ids.expect("mcp__wink__run", {"a": 1, "b": 2}, "t1")
    ids.expect("mcp__wink__run", {"b": 2, "a": 1}, "t2")
    ids.expect("mcp__wink__run", {"a": 3}, "t3")

    assert ids.take("run", {"b": 2, "a": 1}) == "t1"
    assert ids.take("run", {"a": 3}) == "t3"
    assert ids.take("run", {"a": 1, "b": 2}) == "t2"
    assert ids.take("run", {"a": 1, "b": 2}) is None
    assert ids.take("other", {}) is None


def test_long_results_keep_head_and_tail():
    assert shorten("x" * MAX_RESULT_CHARACTERS) == "x" * MAX_RESULT_CHARACTERS
    cut = shorten("a" * MAX_RESULT_CHARACTERS + "b" * MAX_RESULT_CHARACTERS)
    assert cut.startswith("aaa")
    assert cut.endswith("bbb")
    assert "100,000 characters left out" in cut
