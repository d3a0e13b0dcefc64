"""Approvals of MCP calls in the items of a request: which of them are open, and whether their server is declared. Pure.

A replayed history contains approvals that a response has answered already: an `mcp_call` follows. Those are not
open, also if their own call was not run, as past `max_tool_calls`: a later request does not make it run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from antwort.api.errors import invalid
from antwort.api.items import Item
from antwort.api.tools import server_label
from antwort.engine.declared.tools import DeclaredTool

_MAX_SHOWN: Final = 64


def open_approvals(given: Sequence[Item]) -> list[tuple[int, Item]]:
    """The `mcp_approval_response` items that no response has answered yet, with their indexes.

    A response runs approved calls before all else: what follows the first of them is the end of all approvals before.
    OpenAI's calls do not always name their request: such a call ends the approval of the same call only.
    """
    requests = {item.raw.get("id"): _called(item) for item in given if item.type == "mcp_approval_request"}
    ran: Counter[tuple[str, ...] | None] = Counter()
    found: list[tuple[int, Item]] = []
    for at in range(len(given) - 1, -1, -1):
        item = given[at]
        if item.type == "mcp_call" and item.raw.get("approval_request_id") is not None:
            break
        if item.type == "mcp_call":
            ran[_called(item)] += 1
        elif item.type == "mcp_approval_response":
            called = requests.get(item.raw.get("approval_request_id"))
            if ran[called]:
                ran[called] -= 1
            else:
                found.append((at, item))
    return found[::-1]


def _called(item: Item) -> tuple[str, ...]:
    """The tool and the arguments of a call, or of the request for its approval."""
    return tuple(str(item.raw.get(key)) for key in ("server_label", "name", "arguments"))


def check_approvals(
    history: Sequence[Item], given: Sequence[Item], tools: Sequence[DeclaredTool], start: int = 0
) -> None:
    """`ApiError` 400 for an approval of no request, or of a call whose server is not declared: it would not be run.

    `given` are the visible items of the request, which has them from `start` on.
    """
    labels = {server_label(one.tool) for one in tools}
    requests = {item.raw.get("id"): item.raw for item in history if item.type == "mcp_approval_request"}
    for at, item in open_approvals(given):
        request_id = item.raw["approval_request_id"]
        request = requests.get(request_id)
        if request is None:
            raise invalid(f"There is no approval request '{request_id}' in the history.", param="input")
        label = request.get("server_label")
        if item.raw["approve"] and label not in labels:
            param = f"input[{start + at}]"
            server = str(label)[:_MAX_SHOWN]
            message = (
                f"'{param}' approves a call of the MCP server '{server}', which is not declared. Add the server to "
                "'tools'."
            )
            raise invalid(message, param=param)
