"""Object ids: a type prefix and 128 random bits."""

from __future__ import annotations

import secrets
from typing import Final, Literal, TypeAlias

Prefix: TypeAlias = Literal[
    "resp_", "msg_", "rs_", "fc_", "call_", "ctc_", "ci_", "fs_", "ws_", "sh_", "sho_", "lsh_", "apc_", "cu_", "ig_",
    "cmp_", "mcpl_", "mcpr_", "mcp_", "cntr_", "cfile_", "file-", "vs_", "conv_", "req_", "tsc_", "tso_", "at_", "rep_",
    "skill_", "skillver_",
]  # fmt: skip

ITEM_PREFIXES: Final[dict[str, Prefix]] = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "function_call_output": "fc_",
    "custom_tool_call": "ctc_",
    "custom_tool_call_output": "ctc_",
    "code_interpreter_call": "ci_",
    "file_search_call": "fs_",
    "web_search_call": "ws_",
    "image_generation_call": "ig_",
    "shell_call": "sh_",
    "shell_call_output": "sho_",
    "local_shell_call": "lsh_",
    "apply_patch_call": "apc_",
    "apply_patch_call_output": "apc_",
    "computer_call": "cu_",
    "computer_call_output": "cu_",
    "mcp_call": "mcp_",
    "mcp_list_tools": "mcpl_",
    "mcp_approval_request": "mcpr_",
    "mcp_approval_response": "mcpr_",
    "tool_search_call": "tsc_",
    "tool_search_output": "tso_",
    "additional_tools": "at_",
    "compaction": "cmp_",
    "compaction_trigger": "cmp_",
}
"""By item type: the prefix of the ids of its items."""

MAX_ID_LENGTH: Final = 64
"""Characters of an id, also of a `call_id`."""


def new_id(prefix: Prefix) -> str:
    """A new random id."""
    return f"{prefix}{secrets.token_hex(16)}"


def new_item_id(kind: str) -> str:
    """A new id of an item of this type."""
    return new_id(ITEM_PREFIXES.get(kind, "msg_"))
