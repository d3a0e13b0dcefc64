"""Object ids: a type prefix and 128 random bits."""

from __future__ import annotations

import secrets
from typing import Literal, TypeAlias

Prefix: TypeAlias = Literal[
    "resp_", "msg_", "rs_", "fc_", "call_", "ctc_", "ci_", "fs_", "ws_", "sh_", "sho_", "apc_", "cmp_", "mcpl_", "mcp_",
    "cntr_", "cfile_", "file-", "vs_", "conv_", "req_", "tsc_", "tso_", "at_",
]  # fmt: skip


def new_id(prefix: Prefix) -> str:
    """A new random id."""
    return f"{prefix}{secrets.token_hex(16)}"
