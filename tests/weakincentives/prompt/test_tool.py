from __future__ import annotations

from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any, Generic, Protocol, TypeVar, cast

import msgspec
import pytest
from inline_snapshot import snapshot

from weakincentives.errors import ContractError, PromptValidationError, ResourceError
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import (
    MarkdownSection,
    NativeTool,
    Prompt,
    ProviderTool,
    Tool,
    ToolContext,
    ToolExample,
    ToolResult,
)
from weakincentives.resources import ResourceRegistry
from weakincentives.runtime import Session

T = TypeVar("T")


class Unit(Enum):
    METRE = "m"
    MILE = "mi"


@dataclass
class Search:
    query: Annotated[str, "What to look for."]
    limit: Annotated[int, msgspec.Meta(description="How many, at most.", ge=1)] = 10
    unit: Unit = field(default=Unit.METRE, metadata={"description": "Of all distances."})


@dataclass
class Found:
    hits: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: list[T]


class Renders:
    def render(self) -> str:
        return "rendered"


class RendersToo(Protocol):
    def render(self) -> str: ...


def search(params: Search, *, context: ToolContext) -> ToolResult[Found]:
    """Look
    for things.

    This is not for the model.
    """
    _ = context
    return ToolResult.ok(Found([params.query]))


def now(params: None, *, context: ToolContext) -> ToolResult[None]:
    """Say what time it is."""
    _ = params, context
    return ToolResult("12:00", None)


def untyped(params: Any, *, context: ToolContext) -> ToolResult[Any]:
    _ = params, context
    return ToolResult.ok(None)


def make(params_type: Any = Search, result_type: Any = Found, handler: Any = untyped, **changes: Any) -> Tool[Any, Any]:
    return Tool[params_type, result_type](**{"name": "it", "description": "It.", "handler": handler, **changes})


# ── Declaration ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_tool_with_type_arguments():
    tool = Tool[Search, Found](name="search", description="Look for things.", handler=search)

    assert (tool.params_type, tool.result_type) == (Search, Found)
    assert tool.accepts_overrides is True
    assert tool.declaration() is None


def test_types_default_to_those_of_the_handler():
    tool = Tool(name="search", description="Look for things.", handler=search)

    assert (tool.params_type, tool.result_type) == (Search, Found)


def test_wrap_takes_name_description_and_types_from_the_function():
    tool = Tool.wrap(search)

    assert (tool.name, tool.description) == ("search", "Look for things.")
    assert (tool.params_type, tool.result_type) == (Search, Found)
    assert tool.handler is search


def test_wrap_needs_a_docstring():
    with pytest.raises(PromptValidationError, match=r"Tool.wrap\(untyped\): add a docstring"):
        Tool.wrap(untyped)


def test_tool_is_frozen():
    with pytest.raises(FrozenInstanceError):
        make().name = "other"  # pyright: ignore[reportAttributeAccessIssue] - the point of the test


def test_equality_and_hash():
    example = ToolExample("One.", Search("x"), Found())

    assert make(examples=[example]) == make(examples=(example,))
    assert len({make(examples=[example]), make(examples=[example])}) == 1
    assert make() != make(name="other")


@pytest.mark.parametrize("name", ["a", "a" * 64, "read_file", "read-file", "0", "_", "-"])
def test_valid_names(name):
    assert make(name=name).name == name


@pytest.mark.parametrize("name", ["", "a" * 65, "Read", "read file", "read.file", "é", "it\n", "\nit", "it\0"])
def test_invalid_names_are_rejected(name):
    with pytest.raises(PromptValidationError, match="must be 1 to 64 characters of a-z, 0-9, '_' and '-'"):
        make(name=name)


@pytest.mark.parametrize("description", ["", " \n"])
def test_description_is_required(description):
    with pytest.raises(PromptValidationError, match="tool 'it' needs a description"):
        make(description=description)


def test_handler_is_required():
    with pytest.raises(PromptValidationError, match=r"tool 'it' needs a handler; .* is a NativeTool"):
        make(handler=None)


def test_types_are_required():
    with pytest.raises(PromptValidationError, match=r"NativeTool 'it' needs its types: NativeTool\[Params, Result\]"):
        NativeTool(name="it", description="It.")


@pytest.mark.parametrize("params_type", [int, str, dict, dict[str, int], list[Search], Search | None, Any, "Search"])
def test_params_must_be_a_dataclass(params_type):
    with pytest.raises(PromptValidationError, match="tool 'it': params must be a dataclass or None"):
        make(params_type)


@dataclass
class Imaginary:
    number: complex


def test_params_without_a_schema_are_rejected_on_construction():
    with pytest.raises(PromptValidationError, match="tool 'it': 'Imaginary' has no JSON schema"):
        make(Imaginary)


@pytest.mark.parametrize(
    "result_type",
    [
        None,
        str,
        int,
        float,
        bool,
        dict,
        dict[str, object],
        list[Found],
        tuple[int, ...],
        Mapping[str, int],
        Found,
        Found | None,
        Page[int],
        Any,
        Renders,
        RendersToo,
    ],
    ids=str,
)
def test_valid_result_types(result_type):
    make(result_type=result_type)


@pytest.mark.parametrize("result_type", [object, bytes, complex, Found | bytes, Filesystem], ids=str)
def test_invalid_result_types_are_rejected(result_type):
    with pytest.raises(PromptValidationError, match="tool 'it': result must be a dataclass, a JSON-like type, None"):
        make(result_type=result_type)


# ── Spec ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_spec_has_name_description_and_a_strict_schema():
    spec = Tool.wrap(search).spec()

    assert (spec.name, spec.description, spec.strict) == ("search", "Look for things.", True)
    assert spec.parameters == snapshot(
        {
            "type": "object",
            "properties": {
                "query": {"description": "What to look for.", "type": "string"},
                "limit": {
                    "description": "How many, at most. Null means 10.",
                    "anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}],
                },
                "unit": {
                    "description": 'Of all distances. Null means "m".',
                    "anyOf": [{"$ref": "#/$defs/Unit"}, {"type": "null"}],
                },
            },
            "required": ["query", "limit", "unit"],
            "additionalProperties": False,
            "$defs": {"Unit": {"enum": ["m", "mi"], "type": "string"}},
        }
    )


def test_tool_without_params_has_an_empty_object_schema():
    tool = Tool[None, None](name="now", description="Say what time it is.", handler=now)

    assert tool.params_type is type(None)
    assert tool.result_type is type(None)
    assert tool.spec().strict is True
    assert tool.spec().parameters == {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    assert Tool.wrap(now).spec() == tool.spec()


@dataclass
class Free:
    by_name: Annotated[dict[str, int], "How many of each."]


def test_params_without_a_strict_schema_have_a_plain_one():
    spec = make(Free).spec()

    assert spec.strict is False
    assert spec.parameters == {
        "type": "object",
        "properties": {
            "by_name": {
                "type": "object",
                "additionalProperties": {"type": "integer"},
                "description": "How many of each.",
            }
        },
        "required": ["by_name"],
    }


def test_generic_params():
    assert make(Page[int]).spec().parameters["properties"]["items"] == {"type": "array", "items": {"type": "integer"}}


def test_with_descriptions():
    tool = make()
    other = tool.with_descriptions("Other words.", {"query": "Anything."})

    assert other.spec().description == "Other words."
    assert other.spec().parameters["properties"]["query"]["description"] == "Anything."
    assert other.spec().parameters["properties"]["limit"]["description"] == "How many, at most. Null means 10."
    assert (other.name, other.handler, other.params_type) == (tool.name, tool.handler, tool.params_type)
    assert tool.spec().description == "It."


def test_description_of_an_unknown_parameter_is_rejected():
    with pytest.raises(PromptValidationError, match="tool 'it': Search has no field 'colour' to describe"):
        make().with_descriptions("It.", {"colour": "Which?"})


# ── Examples ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_example_with_type_arguments():
    example = ToolExample[Search, Found]("One.", Search("x"), Found(["y"]))

    assert example == ToolExample(description="One.", input=Search("x"), output=Found(["y"]))


def test_examples_are_part_of_the_description():
    tool = make(examples=[ToolExample("Find cats.", Search("cats"), Found(["Tom"]))])

    assert tool.spec().description == (
        'It.\n\nExample: Find cats.\n{"query":"cats","limit":10,"unit":"m"} → {"hits":["Tom"]}'
    )


def test_example_without_params_and_result():
    tool = make(None, None, examples=[ToolExample("At noon.", None, None)])

    assert tool.spec().description == "It.\n\nExample: At noon.\nno parameters → nothing"


@dataclass
class Moment:
    at: datetime
    what: Any = None


def test_example_with_values_that_json_cannot_represent():
    tool = make(Moment, examples=[ToolExample("Then.", Moment(datetime(2030, 1, 1, tzinfo=UTC), 1j), Found())])

    assert '{"at":"2030-01-01T00:00:00Z","what":"1j"}' in tool.spec().description


@pytest.mark.parametrize(
    "result_type, output",
    [
        (Any, 1),
        (int | None, 1),
        (int | None, None),
        (Found | str, "none"),
        (dict[str, object], {}),
        (list[Found], [Found()]),
        (Page[int], Page([1])),
        (None, None),
        (RendersToo, Renders()),
    ],
)
def test_example_of_the_result_type_is_accepted(result_type, output):
    make(result_type=result_type, examples=[ToolExample("One.", Search("x"), output)])


@pytest.mark.parametrize(
    "example, why",
    [
        (ToolExample("Odd.", Found(), Found()), "the input of example 'Odd.' is a Found, not .*Search"),
        (ToolExample("Odd.", Search("x"), "found"), "the output of example 'Odd.' is a str, not .*Found"),
        (ToolExample("Odd.", None, Found()), "the input of example 'Odd.' is a NoneType, not .*Search"),
    ],
)
def test_example_of_another_type_is_rejected(example, why):
    with pytest.raises(PromptValidationError, match=f"tool 'it': {why}"):
        make(examples=[example])


# ── Provider-run tools ────────────────────────────────────────────────────────────────────────────────────────────────


def test_native_tool_has_no_handler():
    tool = NativeTool[Search, Found](name="web_search", description="Search the web.")

    assert isinstance(tool, Tool)
    assert tool.handler is None
    assert tool.accepts_overrides is False
    assert NativeTool[Search, Found](name="a", description="A.", accepts_overrides=True).accepts_overrides is True


def test_native_tool_adds_no_field():
    assert NativeTool.__dataclass_fields__.keys() == Tool.__dataclass_fields__.keys()


def test_native_tool_with_config_is_a_copy():
    plain = NativeTool[Search, Found](name="web_search", description="Search.", accepts_overrides=True)
    tool = plain.with_config(Config("4g"))

    assert isinstance(tool, NativeTool)
    assert (tool.config, tool.declaration().config, plain.declaration().config) == (Config("4g"), Config("4g"), None)
    assert (tool.name, tool.params_type, tool.result_type, tool.accepts_overrides) == (
        *("web_search", Search, Found),
        True,
    )
    assert tool.declaration().tool is tool
    assert tool == plain.with_config(Config("4g")) != plain.with_config(Config())
    assert tool.with_config({"type": "web_search"}).declaration().config == {"type": "web_search"}
    described = cast("Any", tool.with_descriptions("Find.", {}))
    assert (described.prompt_text(), described.config) == ("Find.", Config("4g"))
    assert described.with_config(Config()).prompt_text() == "Find."


def test_native_tool_with_a_handler_is_rejected():
    with pytest.raises(
        PromptValidationError, match="native tool 'web_search' is run by the provider and takes no hand"
    ):
        NativeTool[Search, Found](name="web_search", description="Search the web.", handler=search)


@pytest.mark.parametrize(
    "declare",
    [
        lambda: NativeTool[Search, Found](name="Web Search", description="Search."),
        lambda: NativeTool[Search, Found](name="web_search", description=""),
        lambda: cast("Any", NativeTool)[int, Found](name="web_search", description="Search."),
        lambda: cast("Any", NativeTool)[Search, object](name="web_search", description="Search."),
        lambda: NativeTool[Search, Found](
            name="web_search", description="S.", examples=(ToolExample("x", cast("Any", 1), Found()),)
        ),
    ],
    ids=["name", "description", "params", "result", "example"],
)
def test_native_tool_is_validated_like_a_tool(declare):
    with pytest.raises(PromptValidationError):
        declare()


def test_native_tool_declares_the_capability_of_its_name():
    tool = NativeTool[Search, Found](name="web_search", description="Search the web.")
    declared = tool.declaration()

    assert (declared.capability, declared.name, declared.provider) == ("web_search", "web_search", None)
    assert declared.tool is tool


@dataclass(frozen=True)
class Config:
    memory: str = "1g"


def hook(result: Found, context: ToolContext) -> ToolResult[Found]:
    _ = context
    return ToolResult.ok(result)


def test_provider_tool_has_provider_config_and_hook():
    tool = ProviderTool[None, Found, Config](
        name="python",
        description="Run Python.",
        provider="openai",
        capability="code_interpreter",
        config=Config("4g"),
        handle_provider_output=hook,
    )
    declared = tool.declaration()

    assert tool.handle_provider_output is hook
    assert (declared.capability, declared.name, declared.provider) == ("code_interpreter", "python", "openai")
    assert declared.config == Config("4g")
    assert declared.tool is tool


def test_handler_of_a_provider_tool_is_validated():
    made = ProviderTool[Search, Found, Config](
        name="it", description="It.", provider="openai", config=Config(), handler=search
    )

    assert made.handler is search
    assert made.declaration().capability == "it"
    with pytest.raises(PromptValidationError, match="takes Search, but the tool's params are NoneType"):
        ProviderTool[None, Found, Config](
            name="it", description="It.", provider="openai", config=Config(), handler=cast("Any", search)
        )


def test_provider_tool_requires_a_provider():
    with pytest.raises(PromptValidationError, match="provider tool 'it' needs its provider"):
        ProviderTool[None, Found, Config](name="it", description="It.", provider="", config=Config())


# ── Context ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def context(resources: ResourceRegistry) -> ToolContext:
    prompt = Prompt(ns="test", key="it", sections=[MarkdownSection(title="Task", key="task", template="Do it.")])
    return ToolContext(
        prompt=prompt, rendered_prompt=prompt.render(), adapter=None, session=Session(), resources=resources
    )


def test_context_filesystem_is_the_resource():
    files = InMemoryFilesystem()

    assert context(ResourceRegistry.build({Filesystem: files})).filesystem is files


def test_context_without_a_filesystem_is_an_error():
    with pytest.raises(ResourceError, match=r"no resource of type Filesystem; pass it with evaluate\(resources=…\)"):
        _ = context(ResourceRegistry()).filesystem


def test_contract_requires_a_handler_or_a_declaration():
    class Unchecked(Tool[None, None]):
        def _check_handler(self) -> None: ...

    with pytest.raises(ContractError, match="a tool has a handler, or a declaration"):
        Unchecked(name="nothing", description="Runs nowhere.")
