"""Tools that a request declares: where they come from (`tools`), and the names that models know them by (`names`).

`approvals` finds the approved calls of MCP servers, and refuses those whose server is not declared.
"""

from __future__ import annotations

__all__: list[str] = []
