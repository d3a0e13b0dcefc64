from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass
from typing import Any, Generic, TypeVar, cast

import pytest

from weakincentives.errors import PromptValidationError
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import (
    MarkdownSection,
    NativeDeclaration,
    NativeTool,
    Prompt,
    PromptTemplate,
    ProviderTool,
    Section,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.resources import ResourceRegistry

T = TypeVar("T")


@dataclass
class Params:
    topic: str


@dataclass
class MoreParams(Params):
    more: str = ""


@dataclass
class Query:
    text: str


@dataclass
class Answer:
    text: str


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: list[T]


@dataclass
class Imaginary:
    number: complex


class ResourceSection(Section[None]):
    def __init__(self, key: str, lent: dict[type, object]) -> None:
        super().__init__(title="Lending", key=key)
        self.lent = lent

    def render(self, params: object, depth: int, number: str) -> str:
        return ""

    def resources(self) -> ResourceRegistry:
        return ResourceRegistry.build(self.lent)


class Declaring(Section[None]):
    def render(self, params: object, depth: int, number: str) -> str:
        return ""

    def native_tools(self, params: object = None) -> tuple[NativeDeclaration, ...]:
        return (NativeDeclaration("web_search", "searching"),)


def look(params: Query, *, context: ToolContext) -> ToolResult[Answer]:
    """Look something up."""
    return ToolResult.ok(Answer(params.text))


LOOK = Tool.wrap(look)
WEB_SEARCH = NativeTool[Query, Answer](name="web_search", description="Search the web.")


def section(key: str = "task", **changes: Any) -> MarkdownSection[Params]:
    return MarkdownSection[Params](**{"title": key.title(), "key": key, "template": "About ${topic}.", **changes})


def plain(key: str = "task", **changes: Any) -> MarkdownSection[Any]:
    return MarkdownSection(**{"title": key.title(), "key": key, "template": "Do it.", **changes})


def template(*sections: Section[Any], **changes: Any) -> PromptTemplate[Any]:
    return PromptTemplate(**{"ns": "test", "key": "prompt", "sections": sections, **changes})


def prompt(*sections: Section[Any]) -> Prompt[Any]:
    return Prompt(template(*sections))


# ── Template ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_template_attributes():
    one = plain()
    built = PromptTemplate[Answer](ns="test", key="prompt", name="My prompt", sections=[one], allow_extra_keys=True)

    assert (built.ns, built.key, built.name, built.sections) == ("test", "prompt", "My prompt", (one,))
    assert (built.output_type, built.container, built.allow_extra_keys) == (Answer, "object", True)
    assert repr(built) == "PromptTemplate[Answer](ns='test', key='prompt')"


def test_name_defaults_to_the_key():
    assert template().name == "prompt"


@pytest.mark.parametrize("field_name", ["ns", "key", "name", "sections", "allow_extra_keys", "output_type", "nodes"])
def test_template_is_frozen(field_name):
    for built in (template(), PromptTemplate[Answer](ns="test", key="prompt")):
        with pytest.raises(FrozenInstanceError):
            setattr(built, field_name, None)


def test_sections_from_any_sequence():
    built = template(sections=(plain(key) for key in ("one", "two")))

    assert [one.key for one in built.sections] == ["one", "two"]
    assert [node.path for node in built.nodes] == ["one", "two"]


@pytest.mark.parametrize("key", ["", "No", "a b", "../up", "a" * 65, "prompt\n"])
def test_keys_and_namespaces_are_validated(key):
    with pytest.raises(PromptValidationError, match="prompt ns"):
        template(ns=key)
    with pytest.raises(PromptValidationError, match="prompt key"):
        template(key=key)


@pytest.mark.parametrize(
    "sections",
    [
        [plain("one"), plain("one")],
        [plain("one", children=[plain("two"), plain("two")])],
        [plain("one", children=[plain("two")]), plain("one.two")],
    ],
    ids=["at the top", "below another", "with a dot"],
)
def test_duplicate_section_path_is_rejected(sections):
    with pytest.raises(PromptValidationError, match=r"'prompt' has two sections with path 'one.*': change the key"):
        template(*sections)


def test_section_object_may_be_used_several_times():
    shared = plain("shared")

    template(plain("one", children=[shared]), plain("two", children=[shared]))
    template(shared)
    with pytest.raises(PromptValidationError, match="two sections with path 'shared'"):
        template(shared, shared)


@pytest.mark.parametrize("depth", [0, 1])
def test_placeholder_that_is_not_a_field_is_rejected(depth):
    invalid: Section[Any] = section(template="About ${topic} and ${colour}.")
    with pytest.raises(PromptValidationError, match=r"uses \$\{colour\}, which is not a field of Params"):
        template(plain("up", children=[invalid]) if depth else invalid)


def test_placeholder_without_params_is_rejected():
    with pytest.raises(PromptValidationError, match=r"uses \$\{topic\}, which is unknown: the section has no params"):
        template(plain(template="About ${topic}."))


@pytest.mark.parametrize("invalid", [MarkdownSection, "a section", None])
@pytest.mark.parametrize("depth", [0, 1])
def test_sections_must_be_section_instances(invalid, depth):
    with pytest.raises(PromptValidationError, match="which is not a Section instance"):
        template(plain(children=[invalid]) if depth else invalid)


def test_function_instead_of_a_tool_is_rejected_with_a_hint():
    with pytest.raises(PromptValidationError, match=r"'task': tools contains .*look.* not a Tool; use Tool\.wrap"):
        template(plain(tools=[look]))


def test_find_section_returns_the_first_of_a_type():
    kid = section("kid")
    lending = ResourceSection("lending", {})
    built = template(plain("top", children=[kid]), lending)

    assert built.find_section(ResourceSection) is lending
    assert built.find_section(MarkdownSection) is built.sections[0]
    assert built.find_section(type(kid)) is kid
    assert built.find_section(Declaring) is None
    assert Prompt(built).find_section(ResourceSection) is lending


# ── Tool names ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "sections, collision",
    [
        ([plain("a", tools=[LOOK]), plain("b", tools=[LOOK])], "tool name 'look' .* section 'a' and by section 'b'"),
        (
            [plain("a", children=[plain("b", tools=[LOOK])]), plain("c", tools=[LOOK])],
            r"tool name 'look' .* section 'a\.b' and by section 'c'",
        ),
        ([plain("a", tools=[LOOK, LOOK])], "tool name 'look' .* section 'a' and by section 'a'"),
        (
            [plain("a", tools=[WEB_SEARCH]), plain("b", tools=[WEB_SEARCH])],
            "tool name 'web_search' .* section 'a' and by section 'b'",
        ),
        (
            [plain("a", tools=[WEB_SEARCH]), Declaring(title="B", key="b")],
            "provider-run tool 'web_search' .* section 'a' and by section 'b'",
        ),
        (
            [
                Declaring(title="A", key="a"),
                plain("b", tools=[Tool[Query, Answer](name="searching", description="Search here.", handler=look)]),
            ],
            "tool name 'searching' .* section 'a' and by section 'b'",
        ),
        (
            [
                plain("a", summary="In short.", visibility=SectionVisibility.SUMMARY),
                plain("b", tools=[Tool[Query, Answer](name="open_section", description="Open.", handler=look)]),
            ],
            "tool name 'open_section' .* progressive disclosure and by section 'b'",
        ),
    ],
    ids=[
        "siblings",
        "far apart",
        "one section",
        "native twice",
        "native in two ways",
        "native and client",
        "client twice",
    ],
)
def test_name_collision_names_both_origins(sections, collision):
    with pytest.raises(PromptValidationError, match=collision.replace(" .* ", " is declared by ")):
        template(*sections)


def test_tool_may_be_called_open_section_without_summarized_sections():
    template(plain(tools=[Tool[Query, Answer](name="open_section", description="Open a section.", handler=look)]))


def test_two_tools_of_one_capability_collide():
    def provided(name: str) -> ProviderTool[None, Answer, None]:
        return ProviderTool[None, Answer, None](
            name=name, description="Run.", provider="openai", capability="code_interpreter", config=None
        )

    with pytest.raises(PromptValidationError, match="provider-run tool 'code_interpreter' is declared by section 'a'"):
        template(plain("a", tools=[provided("one")]), plain("b", tools=[provided("two")]))


# ── Output ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "output, output_type, container",
    [
        (Answer, Answer, "object"),
        (list[Answer], Answer, "array"),
        (Page[int], Page[int], "object"),
        (list[Page[int]], Page[int], "array"),
        (str, str, None),
        (None, None, None),
        (Any, None, None),
    ],
    ids=str,
)
def test_valid_output_types(output, output_type, container):
    built = cast("Any", PromptTemplate)[output](ns="test", key="prompt")

    assert (built.output_type, built.container) == (output_type, container)
    assert Prompt(built).render().output_type == output_type
    assert cast("Any", Prompt)[output](ns="test", key="prompt").template.container == container


@pytest.mark.parametrize("output", [int, dict, list, list[int], tuple[Answer, ...], Answer | None], ids=str)
def test_invalid_output_types_are_rejected(output):
    with pytest.raises(PromptValidationError, match="output must be a dataclass, a list of one, or str"):
        cast("Any", PromptTemplate)[output](ns="test", key="prompt")


@pytest.mark.parametrize("output", [Imaginary, list[Imaginary]])
def test_output_without_a_schema_is_rejected_on_construction(output):
    with pytest.raises(PromptValidationError, match="invalid output type: 'Imaginary' has no JSON schema"):
        cast("Any", PromptTemplate)[output](ns="test", key="prompt")


# ── Prompt ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_prompt_creates_its_template():
    one = section()
    built = Prompt[Answer](ns="test", key="prompt", name="Mine", sections=(one,), allow_extra_keys=True)

    assert (built.ns, built.key, built.name) == ("test", "prompt", "Mine")
    assert (built.template.sections, built.template.allow_extra_keys) == ((one,), True)
    assert built.template.output_type is Answer
    assert repr(built) == "Prompt(ns='test', key='prompt')"


def test_prompt_takes_either_a_template_or_its_arguments():
    invalid: Any = Prompt
    for arguments, named in (((), {}), ((template(),), {"ns": "test", "key": "prompt"})):
        with pytest.raises(PromptValidationError, match="either a PromptTemplate or ns=, key= and sections="):
            invalid(*arguments, **named)
    with pytest.raises(PromptValidationError, match="Prompt takes a PromptTemplate, not 'text'"):
        invalid("text")


def test_bind_returns_the_prompt():
    built = prompt(section())

    assert built.bind(Params("cats")) is built
    assert built.params == (Params("cats"),)
    assert built.render().text == "## 1. Task (task)\n\nAbout cats."


def test_later_params_of_a_type_replace_earlier_ones():
    built = prompt(section()).bind(Params("cats"), Params("dogs")).bind(Params("cows"))

    assert built.params == (Params("cows"),)


def test_bind_accepts_params_of_tools():
    built = prompt(section(tools=[LOOK])).bind(Params("cats"), Query("hello"))

    assert built.render().text == "## 1. Task (task)\n\nAbout cats."


@pytest.mark.parametrize("stray", [Answer("x"), MoreParams("x"), "x", Params])
def test_bind_rejects_unknown_params_and_lists_known_types(stray):
    built = prompt(section())

    with pytest.raises(PromptValidationError, match=r"'prompt' has no section with params \w+ \(it has: Params\)"):
        built.bind(Params("cats"), stray)
    assert built.params == ()


def test_with_params_does_not_change_the_original():
    original = prompt(section()).bind(Params("cats"))
    copy = original.with_params(Params("dogs"))

    assert (original.params, copy.params) == ((Params("cats"),), (Params("dogs"),))
    assert copy.template is original.template


def test_prompts_of_one_template_do_not_share_params():
    built = template(section())
    Prompt(built).bind(Params("cats"))

    assert Prompt(built).params == ()


# ── Resources ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_resources_are_merged_from_sections():
    files = InMemoryFilesystem()
    lent = prompt(
        plain("top", children=[ResourceSection("files", {Filesystem: files})]), ResourceSection("text", {str: "x"})
    )

    assert lent.resources().get(Filesystem) is files
    assert lent.resources().get(str) == "x"


def test_duplicate_resource_type_is_rejected():
    with pytest.raises(PromptValidationError, match=r"resource 'builtins.str' is declared by section 'a' and by sect"):
        prompt(ResourceSection("a", {str: "x"}), ResourceSection("b", {str: "y"})).resources()


def test_resource_types_of_the_same_name_are_distinct():
    def client(marker: int) -> type:
        return type("Client", (), {"__qualname__": f"service{marker}.Client"})

    one, two = client(1), client(2)

    assert len(prompt(ResourceSection("a", {one: one()}), ResourceSection("b", {two: two()})).resources()) == 2
