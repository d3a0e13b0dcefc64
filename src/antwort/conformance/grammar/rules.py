"""Rules of event streams as data: the keys of events, items, parts and responses, and the order of an item's events.

They are written from OpenAI's wire. Each event type has a letter, and the letters of an item's events must match the
regular expression of its item type.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

SentEvent: TypeAlias = dict[str, Any]


def _keys(names: str) -> frozenset[str]:
    return frozenset(names.split())


# ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class EventRule(NamedTuple):
    """The letter of an event type, and its keys besides `type` and `sequence_number`."""

    letter: str
    keys: frozenset[str]
    optional_keys: frozenset[str] = frozenset()
    is_padded: bool = False
    """Whether the event has `obfuscation`, unless the request switches it off."""


def _events(where: str, **rules: tuple[str, str]) -> dict[str, EventRule]:
    """Rules by event name, with `__` for a dot. All deltas of text are padded."""
    return {
        name.replace("__", "."): EventRule(letter, _keys(f"{where} {keys}"), is_padded=name.endswith("__delta"))
        for name, (letter, keys) in rules.items()
    }


EVENTS: Final[dict[str, EventRule]] = {
    **_events("output_index", output_item__added=("A", "item"), output_item__done=("D", "item")),
    **_events(
        "item_id output_index content_index",
        content_part__added=("(", "part"),
        content_part__done=(")", "part"),
        output_text__delta=("t", "delta logprobs"),
        output_text__annotation__added=("n", "annotation annotation_index"),
        output_text__done=("T", "text logprobs"),
        refusal__delta=("r", "delta"),
        refusal__done=("R", "refusal"),
        reasoning_text__delta=("k", "delta"),
        reasoning_text__done=("K", "text"),
    ),
    **_events(
        "item_id output_index summary_index",
        reasoning_summary_part__added=("[", "part"),
        reasoning_summary_part__done=("]", "part"),
        reasoning_summary_text__delta=("s", "delta"),
        reasoning_summary_text__done=("S", "text"),
    ),
    **_events(
        "item_id output_index",
        function_call_arguments__delta=("f", "delta"),
        function_call_arguments__done=("F", "arguments"),
        custom_tool_call_input__delta=("c", "delta"),
        custom_tool_call_input__done=("C", "input"),
        compaction__compacting=("x", ""),
        code_interpreter_call__in_progress=("I", ""),
        code_interpreter_call_code__delta=("p", "delta"),
        code_interpreter_call_code__done=("P", "code"),
        code_interpreter_call__interpreting=("e", ""),
        code_interpreter_call__completed=("E", ""),
        file_search_call__in_progress=("i", ""),
        file_search_call__searching=("q", ""),
        file_search_call__completed=("Q", ""),
        web_search_call__in_progress=("w", ""),
        web_search_call__searching=("y", ""),
        web_search_call__completed=("Y", ""),
        mcp_list_tools__in_progress=("l", ""),
        mcp_list_tools__completed=("L", ""),
        mcp_list_tools__failed=("X", ""),
        mcp_call__in_progress=("m", ""),
        mcp_call_arguments__delta=("a", "delta"),
        mcp_call_arguments__done=("B", "arguments"),
        mcp_call__completed=("M", ""),
        mcp_call__failed=("W", ""),
        apply_patch_call_operation_diff__delta=("d", "delta"),
        apply_patch_call_operation_diff__done=("G", "diff"),
        image_generation_call__in_progress=("g", ""),
        image_generation_call__generating=("j", ""),
        image_generation_call__completed=("N", ""),
    ),
    **_events(
        "output_index command_index",  # no item_id
        shell_call_command__added=("b", "command"),
        shell_call_command__delta=("h", "delta"),
        shell_call_command__done=("H", "command"),
    ),
    "shell_call_output_content.delta": EventRule("o", _keys("item_id output_index command_index delta")),
    "shell_call_output_content.done": EventRule("O", _keys("item_id output_index command_index output")),
    "image_generation_call.partial_image": EventRule(
        "J",
        _keys("item_id output_index partial_image_index partial_image_b64"),
        _keys("size quality background output_format"),
    ),
    **{
        name: EventRule("", _keys("response"))
        for name in ("created", "queued", "in_progress", "completed", "failed", "incomplete")
    },
    "error": EventRule("", _keys("error")),
}
"""All event types, without the prefix `response.`."""

FINAL_EVENTS: Final = ("response.completed", "response.incomplete", "response.failed")

DONE_FIELDS: Final = {
    "output_text": "text",
    "refusal": "refusal",
    "reasoning_text": "text",
    "reasoning_summary_text": "text",
    "function_call_arguments": "arguments",
    "custom_tool_call_input": "input",
    "code_interpreter_call_code": "code",
    "mcp_call_arguments": "arguments",
    "apply_patch_call_operation_diff": "diff",
    "shell_call_command": "command",
}
"""The field of a `done` event that equals the concatenated deltas."""


# ── items ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_STATUSES = _keys("completed incomplete")
_HOSTED_STATUSES = _keys("completed incomplete failed")
_WRITTEN = _keys("content summary arguments input code outputs queries output")

WRITTEN_INSIDE: Final = {"shell_call": ("action", "commands"), "apply_patch_call": ("operation", "diff")}
"""The field of an object in an item that is empty when the item is added."""


class ItemRule(NamedTuple):
    """An item type: the prefix of its id, its keys, and the order of its events."""

    prefix: str
    keys: frozenset[str]
    order: str
    interrupted_order: str = ""
    """The order if the call failed or was not run to its end; by default the same."""
    optional_keys: frozenset[str] = frozenset()
    statuses: frozenset[str] = _STATUSES
    """The statuses of the ended item."""
    late_keys: frozenset[str] = frozenset()
    """Keys that the item has at its end, and not when it is added."""
    initial_status: str = "in_progress"
    empty_keys: frozenset[str] = _WRITTEN
    """Keys with an empty value, or none, when the item is added."""


ITEMS: Final[dict[str, ItemRule]] = {
    "message": ItemRule(
        "msg_", _keys("id type status role content"), r"A(\(([tn]*T|r*R)\))*D", optional_keys=_keys("phase")
    ),
    "reasoning": ItemRule(
        "rs_",
        _keys("id type summary"),
        r"A(\[s*S\]|\(k*K\))*D",
        optional_keys=_keys("content encrypted_content status"),
    ),
    "function_call": ItemRule(
        "fc_", _keys("id type status call_id name arguments"), "Af*FD", optional_keys=_keys("namespace caller")
    ),
    "custom_tool_call": ItemRule(
        "ctc_", _keys("id type status call_id name input"), "Ac*CD", optional_keys=_keys("namespace caller")
    ),
    "code_interpreter_call": ItemRule(
        "ci_",
        _keys("id type status code container_id outputs"),
        "AIp*PeED",
        interrupted_order="AIp*(Pe?)?D",
        statuses=_HOSTED_STATUSES,
    ),
    "file_search_call": ItemRule(
        "fs_",
        _keys("id type status queries results"),
        "AiqQD",
        interrupted_order="Aiq?Q?D",
        statuses=_HOSTED_STATUSES,
    ),
    "web_search_call": ItemRule(
        "ws_",
        _keys("id type status"),
        "AwyYD",
        interrupted_order="Awy?Y?D",
        optional_keys=_keys("results"),
        statuses=_HOSTED_STATUSES,
        late_keys=_keys("action"),
    ),
    "shell_call": ItemRule(
        "sh_",
        _keys("id type status call_id action"),
        "A(bh*H)+D",
        interrupted_order="A(bh*H)*(bh*)?D",
        optional_keys=_keys("environment caller created_by"),
    ),
    "shell_call_output": ItemRule(
        "sho_",
        _keys("id type status call_id output"),
        "A(o*O)+D",
        interrupted_order="A(o*O)*o*D",
        optional_keys=_keys("max_output_length caller created_by"),
        initial_status="completed",
    ),
    "computer_call": ItemRule(
        "cu_", _keys("id type status call_id pending_safety_checks"), "AD", optional_keys=_keys("action actions")
    ),
    "local_shell_call": ItemRule("lsh_", _keys("id type status call_id action"), "AD"),
    "apply_patch_call": ItemRule(
        "apc_",
        _keys("id type status call_id operation"),
        "A(d*G)?D",
        interrupted_order="A(d*G?)?D",
        optional_keys=_keys("caller created_by"),
    ),
    "mcp_list_tools": ItemRule(
        "mcpl_",
        _keys("id type server_label tools"),
        "Al[LX]D",
        "Al?X?D",
        optional_keys=_keys("error"),
        empty_keys=_keys("tools"),
    ),
    "mcp_call": ItemRule(
        "mcp_",
        _keys("id type status approval_request_id arguments error name output server_label"),
        "Am(a*B)?m?[MW]D|Ama*mB[MW]D",
        interrupted_order="Am?a*m?B?m?[MW]?D",
        statuses=_HOSTED_STATUSES,
    ),
    "mcp_approval_request": ItemRule(
        "mcpr_", _keys("id type arguments name server_label"), "AD", empty_keys=frozenset()
    ),
    "image_generation_call": ItemRule(
        "ig_",
        _keys("id type status"),
        "AgjJ*ND",
        interrupted_order="Agj?J*N?D",
        optional_keys=_keys("background output_format quality revised_prompt size action error"),
        statuses=_HOSTED_STATUSES,
        late_keys=_keys("result"),
    ),
    "compaction": ItemRule("cmp_", _keys("id type encrypted_content"), "Ax?D", optional_keys=_keys("created_by")),
    "tool_search_call": ItemRule("tsc_", _keys("id type status arguments call_id execution"), "AD"),
    "tool_search_output": ItemRule("tso_", _keys("id type status call_id execution tools"), "AD"),
    "program": ItemRule("cm_", _keys("id type call_id code fingerprint"), "AD"),
    "program_output": ItemRule("cmo_", _keys("id type status call_id result"), "AD"),
}

PART_KEYS: Final = {
    "output_text": _keys("type text annotations logprobs"),
    "refusal": _keys("type refusal"),
    "reasoning_text": _keys("type text"),
    "summary_text": _keys("type text"),
    "container_file_citation": _keys("type container_id file_id filename start_index end_index"),
    "file_citation": _keys("type file_id filename index"),
    "file_path": _keys("type file_id index"),
    "url_citation": _keys("type url title start_index end_index"),
    "logs": _keys("type logs"),
    "image": _keys("type url"),
}
"""The keys of content parts, annotations and outputs of the code interpreter."""

UNSURE_PART_KEYS: Final = _keys("logprobs")
"""Part keys that not every model of OpenAI has."""

ACTION_KEYS: Final = {
    "search": _keys("type query"),
    "open_page": _keys("type url"),
    "find_in_page": _keys("type url pattern"),
    "exec": _keys("type command env"),
}
"""The keys of the actions of a web search and of a local shell; of a search also `queries`, and included `sources`."""

UNSURE_ACTION_KEYS: Final = _keys("query url")
"""Keys of actions of a web search that OpenAI does not always send."""

OPTIONAL_ACTION_KEYS: Final = {
    "search": _keys("queries sources"),
    "exec": _keys("timeout_ms user working_directory"),
}

SHELL_ACTION_KEYS: Final = _keys("commands max_output_length timeout_ms")
OPERATION_KEYS: Final = {
    "create_file": _keys("type path diff"),
    "update_file": _keys("type path diff"),
    "delete_file": _keys("type path"),
}
"""The keys of the operations of a patch."""

SHELL_OUTPUT_KEYS: Final = _keys("outcome stderr stdout")
OUTCOME_KEYS: Final = {"exit": _keys("type exit_code"), "timeout": _keys("type")}
LISTED_TOOL_KEYS: Final = _keys("name input_schema")
OPTIONAL_LISTED_TOOL_KEYS: Final = _keys("description annotations")


# ── responses ────────────────────────────────────────────────────────────────────────────────────────────────────────

REQUIRED_RESPONSE_KEYS: Final = _keys(
    "id object created_at status background error incomplete_details instructions max_output_tokens max_tool_calls "
    "model output parallel_tool_calls previous_response_id reasoning service_tier store temperature text tool_choice "
    "tools top_logprobs top_p truncation usage user metadata"
)
"""The keys of the responses that OpenAI has sent since hosted tools exist."""

RESPONSE_KEYS: Final = REQUIRED_RESPONSE_KEYS | _keys(
    "completed_at conversation prompt prompt_cache_key prompt_cache_retention safety_identifier presence_penalty "
    "frequency_penalty"
)
"""The keys of every response of a strict server. Additional ones begin with `antwort:`."""

OPTIONAL_RESPONSE_KEYS: Final = _keys("tool_usage")

RESPONSE_STATUSES: Final = {
    "response.created": _keys("in_progress queued"),
    "response.queued": _keys("queued"),
    "response.in_progress": _keys("in_progress"),
    "response.completed": _keys("completed"),
    "response.incomplete": _keys("incomplete cancelled"),
    "response.failed": _keys("failed"),
}

USAGE_KEYS: Final = _keys("input_tokens input_tokens_details output_tokens output_tokens_details total_tokens")
