"""Converts tools, functions, `tool_choice` and `response_format` to declarations of the Responses API. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from antwort.api.errors import ApiError, invalid, unavailable_tool
from antwort.api.requests import JsonObjectFormat, JsonSchemaFormat, TextFormat, ToolChoice, read_tools
from antwort.api.tools import (
    Chosen,
    CustomTextFormat,
    CustomTool,
    FunctionTool,
    GrammarFormat,
    LocalEnvironment,
    McpTool,
    ShellTool,
    ToolDeclaration,
    ToolTypes,
    UserLocation,
    WebSearchTool,
    tool_type,
)
from antwort.http.wires.chat_completions.params import ParamNames, Place
from antwort.http.wires.chat_completions.request import (
    AllowedTools,
    ChatFunctionTool,
    ChatGrammarFormat,
    ChatJsonObject,
    ChatJsonSchema,
    ChatTextOutput,
    ChatTool,
    ChatToolChoice,
    ChosenAllowed,
    ChosenCustom,
    ChosenFunction,
    ChosenName,
    CreateChatCompletion,
    CustomDefinition,
    FunctionDefinition,
    WebSearchOptions,
)

_NOT_HOSTED = frozenset(
    {
        "apply_patch",
        "computer",
        "computer_use_preview",
        "custom",
        "function",
        "local_shell",
        "namespace",
        "tool_search",
    }
)
"""Tools that the client runs. A chat completion has calls of functions and custom tools only, which are in `tools`."""


def to_tools(chat: CreateChatCompletion, tool_types: ToolTypes) -> tuple[list[ToolDeclaration], list[Place]]:
    """The tools of a request, and the place of each."""
    if chat.functions is not None and chat.tools is not None:
        raise _exclusive("functions", "tools")
    tools: list[ToolDeclaration] = [_tool(tool) for tool in chat.tools or ()]
    tools += [_function(function) for function in chat.functions or ()]
    places = [
        Place(f"tools[{at}]", "function" if isinstance(tool, ChatFunctionTool) else "custom")
        for at, tool in enumerate(chat.tools or ())
    ]
    places += [Place(f"functions[{at}]") for at, _ in enumerate(chat.functions or ())]
    if chat.web_search_options is not None:
        tools.append(_web_search(chat.web_search_options, tool_types))
        places.append(Place("web_search_options"))
    hosted = [Place(f"antwort:tools[{at}]") for at, _ in enumerate(chat.hosted_tools or ())]
    tools += _hosted_tools(chat, hosted, tool_types)
    return tools, [*places, *hosted]


def _tool(tool: ChatTool) -> ToolDeclaration:
    return _function(tool.function) if isinstance(tool, ChatFunctionTool) else _custom(tool.custom)


def _function(given: FunctionDefinition) -> FunctionTool:
    return FunctionTool(given.name, given.parameters, given.strict, given.description)


def _custom(given: CustomDefinition) -> CustomTool:
    form = given.format
    grammar = (
        GrammarFormat(form.grammar.syntax, form.grammar.definition) if isinstance(form, ChatGrammarFormat) else None
    )
    return CustomTool(given.name, given.description, grammar or CustomTextFormat())


def _web_search(options: WebSearchOptions, tool_types: ToolTypes) -> WebSearchTool:
    if "web_search" not in tool_types.available:
        message = "Unsupported parameter: 'web_search_options'. This server has no web search."
        raise invalid(message, param="web_search_options", code="unsupported_parameter")
    location = options.user_location
    if location is None:
        return WebSearchTool(search_context_size=options.search_context_size)
    place = location.approximate
    user = UserLocation(city=place.city, country=place.country, region=place.region, timezone=place.timezone)
    return WebSearchTool(search_context_size=options.search_context_size, user_location=user)


def _hosted_tools(chat: CreateChatCompletion, places: Sequence[Place], tool_types: ToolTypes) -> list[ToolDeclaration]:
    """The tools that the server runs."""
    try:
        tools = read_tools(chat.hosted_tools or [], tool_types)
    except ApiError as error:
        raise ParamNames(tools=places).translate(error) from error
    hosted_types = [kind for kind in tool_types.available if kind not in _NOT_HOSTED]
    for tool, place in zip(tools, places, strict=True):
        is_local = isinstance(tool, ShellTool) and isinstance(tool.environment, LocalEnvironment)
        if tool_type(tool) in _NOT_HOSTED:
            raise unavailable_tool(tool_type(tool), hosted_types, f"{place.path}.type")
        if is_local:
            message = "The server runs the tools of 'antwort:tools': a shell on the client's machine cannot be one."
            raise invalid(message, param=f"{place.path}.environment")
        if isinstance(tool, McpTool) and tool.require_approval != "never":
            message = "A chat completion cannot ask for approvals: set 'require_approval' to \"never\"."
            raise invalid(message, param=f"{place.path}.require_approval")
    return tools


# ── choice and format ────────────────────────────────────────────────────────────────────────────────────────────────


def to_choice(chat: CreateChatCompletion) -> ToolChoice | None:
    """The choice of a tool, or of a function in the deprecated form."""
    if chat.function_call is not None and chat.functions is None:
        raise invalid("'function_call' is only allowed with 'functions'.", param="function_call")
    if isinstance(chat.function_call, ChosenName):
        return Chosen("function", chat.function_call.name)
    return chat.function_call or _choice(chat.tool_choice)


def _choice(given: ChatToolChoice | None) -> ToolChoice | None:
    match given:
        case ChosenFunction() | ChosenCustom():
            return _chosen(given)
        case ChosenAllowed(allowed_tools=AllowedTools(mode=mode, tools=tools)):
            return Chosen("allowed_tools", mode=mode, tools=[_chosen(tool) for tool in tools])
        case _:
            return given


def _chosen(given: ChosenFunction | ChosenCustom) -> Chosen:
    if isinstance(given, ChosenFunction):
        return Chosen("function", given.function.name)
    return Chosen("custom", given.custom.name)


def to_format(
    given: ChatTextOutput | ChatJsonObject | ChatJsonSchema | None,
) -> TextFormat | JsonObjectFormat | JsonSchemaFormat:
    """The format of the output text."""
    match given:
        case ChatJsonObject():
            return JsonObjectFormat()
        case ChatJsonSchema(json_schema=schema):
            return JsonSchemaFormat(schema.name, schema.schema, schema.description, schema.strict)
        case _:
            return TextFormat()


def _exclusive(first: str, second: str) -> ApiError:
    message = f"Mutually exclusive parameters: '{first}' and '{second}'. Give only one of them."
    return invalid(message, param=first, code="mutually_exclusive_parameters")
