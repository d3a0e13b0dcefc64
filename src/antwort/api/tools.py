"""API types of tool declarations and `tool_choice`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, cast, get_args

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

T = TypeVar("T")

MAX_TOOLS: Final = 2048
"""Maximum tools of a request."""

_VERSION_RE: Final = re.compile(r"(?:_preview)?(?:_\d{4}_\d\d_\d\d)?$")

MemoryLimit: TypeAlias = Literal["1g", "4g", "16g", "64g"]
Name: TypeAlias = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
ChosenName: TypeAlias = Annotated[str, Meta(max_length=512)]  # repeated in errors


class _Tool(Struct, tag_field="type", forbid_unknown_fields=True, omit_defaults=False):
    pass


class FunctionTool(_Tool, tag="function"):
    """A client-side function."""

    name: Name
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None
    defer_loading: bool | None = None
    output_schema: dict[str, Any] | None = None
    allowed_callers: list[str] | None = None
    is_async: bool | None = field(name="async", default=None)


class CustomTextFormat(Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    """Any text."""


class GrammarFormat(Struct, tag_field="type", tag="grammar", forbid_unknown_fields=True):
    """Text constrained by a grammar."""

    syntax: Literal["lark", "regex"]
    definition: str


class CustomTool(_Tool, tag="custom"):
    """A client-side tool with free-text input."""

    name: Name
    description: str | None = None
    format: CustomTextFormat | GrammarFormat | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None
    is_async: bool | None = field(name="async", default=None)


class NamespaceTool(_Tool, tag="namespace"):
    """Client-side tools of one subject. Their calls have the name of the namespace beside their own."""

    name: Name
    description: str
    tools: Annotated[list[FunctionTool | CustomTool], Meta(max_length=MAX_TOOLS)]


class ToolSearchTool(_Tool, tag="tool_search"):
    """A search for tools that the model does not know yet: by the client, or by the server."""

    execution: Literal["server", "client"] | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None

    @property
    def is_client_side(self) -> bool:
        return self.execution == "client"


class NetworkPolicy(Struct, forbid_unknown_fields=True):
    """Network access of a container."""

    type: Literal["disabled", "allowlist"]
    allowed_domains: list[str] | None = None
    domain_secrets: list[dict[str, str]] | None = None


class AutoOptions(Struct, tag_field="type", forbid_unknown_fields=True, omit_defaults=True):
    """The latest container of the history, or a new one."""

    file_ids: Annotated[list[str], Meta(max_length=50)] | None = None
    memory_limit: MemoryLimit | None = None
    network_policy: NetworkPolicy | None = None


class AutoContainer(AutoOptions, tag="auto"):
    """The container of the code interpreter."""


class CodeInterpreterTool(_Tool, tag="code_interpreter", omit_defaults=True):
    """Python in a container."""

    container: str | AutoContainer
    allowed_callers: list[str] | None = None


class FileSearchTool(_Tool, tag="file_search"):
    """Search in vector stores."""

    vector_store_ids: list[str]
    max_num_results: Annotated[int, Meta(ge=1, le=50)] | None = None
    filters: dict[str, Any] | None = None
    ranking_options: dict[str, Any] | None = None


class WebSearchFilters(Struct, forbid_unknown_fields=True):
    """Which pages a web search may use."""

    allowed_domains: Annotated[list[str], Meta(min_length=1, max_length=100)] | None = None
    """With their subdomains. The provider checks that they are domains."""


ToolLabel: TypeAlias = Annotated[str, Meta(max_length=128)]
LocationText: TypeAlias = Annotated[str, Meta(max_length=200)]


class UserLocation(Struct, forbid_unknown_fields=True):
    """The approximate location of the user."""

    type: Literal["approximate"] = "approximate"
    city: LocationText | None = None
    country: Annotated[str, Meta(pattern=r"^[A-Za-z]{2}$")] | None = None
    """ISO 3166-1 code."""
    region: LocationText | None = None
    timezone: LocationText | None = None


class _AnyWebSearchTool(_Tool):
    search_context_size: Literal["low", "medium", "high"] | None = "medium"
    user_location: UserLocation | None = None
    search_content_types: list[str] | UnsetType | None = UNSET
    """Accepted and ignored: results are text."""

    def __post_init__(self) -> None:
        if self.search_context_size is None:
            self.search_context_size = "medium"


class _CurrentWebSearchTool(_AnyWebSearchTool):
    filters: WebSearchFilters | None = None
    external_web_access: bool | UnsetType | None = UNSET
    """With false, only what was fetched before is searched and opened."""


class WebSearchTool(_CurrentWebSearchTool, tag="web_search"):
    """Search the web."""


class DatedWebSearchTool(_CurrentWebSearchTool, tag="web_search_2025_08_26"):
    """A dated version of the web search."""


class WebSearchPreviewTool(_AnyWebSearchTool, tag="web_search_preview"):
    """Web search, in its earlier form."""


class DatedWebSearchPreviewTool(_AnyWebSearchTool, tag="web_search_preview_2025_03_11"):
    """A dated version of that."""


class SkillArchive(Struct, tag_field="type", tag="base64", forbid_unknown_fields=True):
    """The files of a skill: a ZIP archive as base64."""

    media_type: Literal["application/zip"]
    data: str


class InlineSkill(Struct, tag_field="type", tag="inline", forbid_unknown_fields=True):
    """A skill that the request brings."""

    name: str
    description: str
    source: SkillArchive


class SkillReference(Struct, tag_field="type", tag="skill_reference", forbid_unknown_fields=True, omit_defaults=True):
    """A skill of `/v1/skills`. `version` is a number or `latest`; without it, the default version."""

    skill_id: str
    version: str | int | None = None


class LocalSkill(Struct, forbid_unknown_fields=True):
    """A skill on the machine of the client."""

    name: str
    description: str
    path: str


Skill: TypeAlias = InlineSkill | SkillReference
MAX_SKILLS: Final = 200
Skills: TypeAlias = Annotated[list[Skill], Meta(max_length=MAX_SKILLS)]


class AutoEnvironment(AutoOptions, tag="container_auto"):
    """The container of the shell."""

    skills: Skills | None = None


class ReferencedEnvironment(Struct, tag_field="type", tag="container_reference", forbid_unknown_fields=True):
    """A container of `/v1/containers`."""

    container_id: str


class LocalEnvironment(Struct, tag_field="type", tag="local", forbid_unknown_fields=True, omit_defaults=True):
    """The machine of the client, which runs the commands."""

    skills: Annotated[list[LocalSkill], Meta(max_length=MAX_SKILLS)] | None = None


class ShellTool(_Tool, tag="shell", omit_defaults=True):
    """A shell, in a container or on the client."""

    environment: AutoEnvironment | ReferencedEnvironment | LocalEnvironment | None = None
    allowed_callers: list[str] | None = None


class ApplyPatchTool(_Tool, tag="apply_patch", omit_defaults=True):
    """Patches, applied by the client."""

    allowed_callers: list[str] | None = None


class LocalShellTool(_Tool, tag="local_shell"):
    """A shell on the client, in its earlier form: one command at a time."""


class ComputerTool(_Tool, tag="computer"):
    """A computer, which the client controls: several actions at a time."""


DisplaySize: TypeAlias = Annotated[int, Meta(ge=1, le=65_536)]


class ComputerUsePreviewTool(_Tool, tag="computer_use_preview"):
    """A computer, in its earlier form: one action at a time."""

    display_width: DisplaySize
    display_height: DisplaySize
    environment: Literal["windows", "mac", "linux", "ubuntu", "browser"]


class McpToolFilter(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Tools of an MCP server: those with these names, and those that the server calls read-only, or not."""

    tool_names: Annotated[list[ToolLabel], Meta(max_length=MAX_TOOLS)] | None = None
    read_only: bool | None = None


class McpApprovalFilter(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Which tools of an MCP server need an approval."""

    always: McpToolFilter | None = None
    never: McpToolFilter | None = None


class McpTool(_Tool, tag="mcp"):
    """The tools of an MCP server."""

    server_label: Annotated[str, Meta(pattern=r"^[a-zA-Z][a-zA-Z0-9_-]{0,63}$")]
    server_url: Annotated[str, Meta(max_length=4096)] | None = None
    """None for a server of the configuration, which the label names."""
    server_description: Annotated[str, Meta(max_length=4096)] | None = None
    headers: dict[str, str] | None = None
    allowed_tools: Annotated[list[ToolLabel], Meta(max_length=MAX_TOOLS)] | McpToolFilter | None = None
    require_approval: Literal["always", "never"] | McpApprovalFilter | None = "always"
    authorization: str | UnsetType | None = UNSET
    """An OAuth access token, sent as a bearer token."""
    connector_id: str | UnsetType | None = UNSET
    tunnel_id: str | UnsetType | None = UNSET
    defer_loading: bool | UnsetType | None = UNSET
    allowed_callers: list[str] | UnsetType | None = UNSET


class _UnavailableTool(Struct, tag_field="type"):
    """A tool of OpenAI's API that this server does not have. Its options are not checked."""


class ImageGenerationTool(_UnavailableTool, tag="image_generation"):
    """Image generation."""


class ProgrammaticToolCallingTool(_UnavailableTool, tag="programmatic_tool_calling"):
    """Tool calls made by code."""


class UncheckedTool(Struct, frozen=True):
    """A declaration that was not understood: an unknown type, or options that the type does not have here.

    Only tools that this server lacks are kept in this form; it is not decoded from requests.
    """

    declaration: dict[str, Any]


_DecodedTool: TypeAlias = (
    FunctionTool
    | CustomTool
    | NamespaceTool
    | ToolSearchTool
    | CodeInterpreterTool
    | FileSearchTool
    | WebSearchTool
    | ShellTool
    | ApplyPatchTool
    | McpTool
    | ComputerTool
    | ComputerUsePreviewTool
    | ImageGenerationTool
    | LocalShellTool
    | ProgrammaticToolCallingTool
    | DatedWebSearchTool
    | WebSearchPreviewTool
    | DatedWebSearchPreviewTool
)

if TYPE_CHECKING:
    ToolDeclaration: TypeAlias = _DecodedTool | UncheckedTool
else:  # what msgspec decodes; `convert_with_tools` puts the others in their places
    ToolDeclaration = _DecodedTool

AnyWebSearchTool: TypeAlias = WebSearchTool | DatedWebSearchTool | WebSearchPreviewTool | DatedWebSearchPreviewTool
"""The forms of the web search. Only the current ones have filters."""

CLIENT_TOOL_TYPES = ("function", "custom", "namespace", "tool_search")
NAMESPACE_TOOL_TYPES = ("function", "custom")
_BY_TYPE: dict[str, type[Struct]] = {str(tool.__struct_config__.tag): tool for tool in get_args(_DecodedTool)}
KNOWN_TOOL_TYPES = frozenset(_BY_TYPE) | {"computer_use"}
"""The tool types of OpenAI's API, available here or not. `computer_use` exists in `tool_choice` only."""


class Chosen(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A `tool_choice` object: one tool by type and name, or a subset of the declared tools (`allowed_tools`)."""

    type: ChosenName
    name: ChosenName | None = None
    server_label: ChosenName | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[Chosen] | None = None

    @property
    def several(self) -> bool:
        return self.type == "allowed_tools"


class ToolTypes(NamedTuple):
    """The tool types that a request may declare, and whether other hosted tools are left out instead of refused."""

    available: Sequence[str] = CLIENT_TOOL_TYPES
    ignores_others: bool = False


def convert_with_tools(document: dict[str, Any], into: type[T]) -> T:
    """Convert JSON with a list `tools`. Hosted tools that are not valid become `UncheckedTool`s.

    Raises `msgspec.ValidationError` if anything else is not valid.
    """
    try:
        return msgspec.convert(document, into)
    except msgspec.ValidationError:
        given: object = document.get("tools")
        if not isinstance(given, list) or len(cast("list[object]", given)) > MAX_TOOLS:
            raise
        tools = cast("list[object]", given)
        unchecked = {at: tool for at, one in enumerate(tools) if (tool := _unchecked(one)) is not None}
        if not unchecked:
            raise
    placeholder = {"type": "computer"}  # a valid declaration
    replaced = [placeholder if at in unchecked else tool for at, tool in enumerate(tools)]
    converted: Any = msgspec.convert({**document, "tools": replaced}, into)
    converted.tools = [unchecked.get(at, tool) for at, tool in enumerate(converted.tools)]
    return converted


def _unchecked(given: object) -> UncheckedTool | None:
    """A hosted tool that is not valid."""
    tool = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    kind = tool.get("type")
    if not isinstance(kind, str) or kind in CLIENT_TOOL_TYPES:
        return None
    is_valid = kind in _BY_TYPE and problem_of(tool) is None
    return None if is_valid else UncheckedTool(tool)


def problem_of(declaration: dict[str, Any]) -> msgspec.ValidationError | None:
    """Why a declaration is not valid."""
    try:
        msgspec.convert(declaration, _BY_TYPE.get(declaration["type"], _DecodedTool))
    except msgspec.ValidationError as error:
        return error
    return None


def tool_type(tool: ToolDeclaration) -> str:
    """The `type` of the tool."""
    return str(tool.declaration["type"] if isinstance(tool, UncheckedTool) else tool.__struct_config__.tag)


def tool_family(kind: str) -> str:
    """The type without its version: `web_search` for `web_search_preview_2025_03_11`."""
    return _VERSION_RE.sub("", kind)


def server_label(tool: ToolDeclaration) -> str | None:
    """The label of an MCP server; None for other tools."""
    if isinstance(tool, McpTool):
        return tool.server_label
    label = tool.declaration.get("server_label") if isinstance(tool, UncheckedTool) else None
    return label if isinstance(label, str) else None


def tool_name(tool: ToolDeclaration) -> str:
    """The declared name of client-side tools and namespaces, otherwise the type."""
    return tool.name if isinstance(tool, (FunctionTool, CustomTool, NamespaceTool)) else tool_type(tool)


def members(tool: ToolDeclaration) -> Sequence[ToolDeclaration]:
    """The tools of a namespace; of another tool, the tool itself."""
    return tool.tools if isinstance(tool, NamespaceTool) else [tool]


def member_paths(
    tools: Iterable[ToolDeclaration], param: str
) -> Iterator[tuple[ToolDeclaration, ToolDeclaration, str]]:
    """Every tool of a list at the path `param` that is no namespace: its declaration, itself, and its path."""
    for at, declared in enumerate(tools):
        for inner, member in enumerate(members(declared)):
            place = f"{param}[{at}]"
            yield declared, member, place if member is declared else f"{place}.tools[{inner}]"
