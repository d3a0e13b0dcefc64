"""Validation of the fields of input items that the engine does not read: what OpenAI's input types require.

Ids and statuses may be omitted, and what an answer may have as null may be null. Only items of a request are validated;
items that an older version stored are not.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from msgspec import Struct

from antwort.api.items import Identified, Raw, Status


class MessageFields(Identified):
    """Fields of a message."""

    status: Status | None = None
    phase: Literal["commentary", "final_answer"] | None = None


class FileSearchFields(Identified, kw_only=True):
    """Fields of a file search."""

    queries: list[str]
    results: list[Raw] | None = None


class WebSearchFields(Identified):
    """Fields of a web search. The earliest ones of OpenAI have no action."""

    action: Raw | None = None


class ImageGenerationFields(Identified):
    """Fields of a generated image."""

    result: str | None = None


class PairedFields(Struct, kw_only=True):
    """Fields of a call, or an output, that needs a `call_id`."""

    id: str | None = None
    call_id: str


class ShellAction(Struct):
    """The commands of a shell call."""

    commands: list[str]


class ShellCallFields(PairedFields, kw_only=True):
    """Fields of a shell call."""

    action: ShellAction


class ShellOutputEntry(Struct):
    """The result of a shell command."""

    stdout: str
    stderr: str
    outcome: Raw


class ShellOutputFields(PairedFields, kw_only=True):
    """Fields of the output of a shell call."""

    output: list[ShellOutputEntry]


class LocalShellAction(Struct):
    """The command of a local shell call."""

    command: list[str]


class LocalShellCallFields(PairedFields, kw_only=True):
    """Fields of a local shell call."""

    action: LocalShellAction


class LocalShellOutputFields(Identified, kw_only=True):
    """Fields of the output of a local shell call, which `id` or `call_id` names."""

    output: str


class PatchOperation(Struct):
    """A change of a file."""

    type: Literal["create_file", "update_file", "delete_file"]
    path: str
    diff: str | None = None


class PatchFields(PairedFields, kw_only=True):
    """Fields of a patch."""

    operation: PatchOperation


class PatchOutputFields(PairedFields, kw_only=True):
    """Fields of the result of a patch."""

    status: Literal["in_progress", "completed", "incomplete", "failed"] | None = None
    output: str | None = None


class ComputerCallFields(PairedFields, kw_only=True):
    """Fields of actions on a computer: one in the earlier form of the tool, or several."""

    action: Raw | None = None
    actions: list[Raw] | None = None
    pending_safety_checks: list[Raw] | None = None


class ComputerOutputFields(PairedFields, kw_only=True):
    """Fields of the output of these actions; the engine reads its screenshot."""

    acknowledged_safety_checks: list[Raw] | None = None
    status: Literal["in_progress", "completed", "incomplete", "failed"] | None = None


class McpRequestFields(Identified, kw_only=True):
    """Fields of a request for the approval of an MCP call."""

    server_label: str
    name: str
    arguments: str


class McpCallFields(McpRequestFields, kw_only=True):
    """Fields of an MCP call."""

    output: str | None = None
    error: Any = None
    approval_request_id: str | None = None


class McpApprovalFields(Identified, kw_only=True):
    """Fields of the user's decision about an MCP call."""

    approval_request_id: str
    approve: bool
    reason: str | None = None


class McpListFields(Identified, kw_only=True):
    """Fields of the list of tools of an MCP server."""

    server_label: str
    tools: list[Raw]


_FIELDS: Final[dict[str, type[Struct]]] = {
    "message": MessageFields,
    "file_search_call": FileSearchFields,
    "web_search_call": WebSearchFields,
    "image_generation_call": ImageGenerationFields,
    "shell_call": ShellCallFields,
    "shell_call_output": ShellOutputFields,
    "local_shell_call": LocalShellCallFields,
    "local_shell_call_output": LocalShellOutputFields,
    "apply_patch_call": PatchFields,
    "apply_patch_call_output": PatchOutputFields,
    "computer_call": ComputerCallFields,
    "computer_call_output": ComputerOutputFields,
    "mcp_call": McpCallFields,
    "mcp_approval_request": McpRequestFields,
    "mcp_approval_response": McpApprovalFields,
    "mcp_list_tools": McpListFields,
}


def given_fields(kind: str) -> type[Struct]:
    """The fields of input items of this type that the engine does not read, and those of all items."""
    return _FIELDS.get(kind, Identified)
