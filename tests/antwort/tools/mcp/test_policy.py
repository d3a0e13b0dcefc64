from __future__ import annotations

import pytest

from antwort.api.tools import McpApprovalFilter, McpTool, McpToolFilter
from antwort.tools.mcp.client import ListedTool
from antwort.tools.mcp.policy import is_allowed, needs_approval

READ = ListedTool("read", None, {}, is_read_only=True)
WRITE = ListedTool("write", None, {})
NAMED = McpToolFilter(tool_names=["write"])
READ_ONLY = McpToolFilter(read_only=True)
BOTH = McpToolFilter(tool_names=["read", "write"], read_only=False)


@pytest.mark.parametrize(
    "allowed, expected",
    [
        (None, [True, True]),
        ([], [False, False]),
        (["read"], [True, False]),
        (NAMED, [False, True]),
        (READ_ONLY, [True, False]),
        (BOTH, [False, True]),
        (McpToolFilter(), [True, True]),
    ],
)
def test_allowed_tools(allowed, expected):
    tool = McpTool("a", allowed_tools=allowed)

    assert [is_allowed(one, tool) for one in (READ, WRITE)] == expected


@pytest.mark.parametrize(
    "required, expected",
    [
        (None, [True, True]),
        ("always", [True, True]),
        ("never", [False, False]),
        (McpApprovalFilter(), [True, True]),
        (McpApprovalFilter(never=McpToolFilter()), [True, True]),
        (McpApprovalFilter(never=READ_ONLY), [False, True]),
        (McpApprovalFilter(never=BOTH), [True, False]),
        (McpApprovalFilter(never=McpToolFilter(read_only=False), always=NAMED), [True, True]),
        (McpApprovalFilter(never=READ_ONLY, always=McpToolFilter()), [False, True]),
        (McpApprovalFilter(always=NAMED), [True, True]),
    ],
)
def test_require_approval(required, expected):
    tool = McpTool("a", require_approval=required)

    assert [needs_approval(one, tool) for one in (READ, WRITE)] == expected
