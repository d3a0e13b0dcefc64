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


class Lending(Section[None]):
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


# ── The template ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_template_has_what_it_was_given():
    one = plain()
    made = PromptTemplate[Answer](ns="test", key="prompt", name="My prompt", sections=[one], allow_extra_keys=True)

    assert (made.ns, made.key, made.name, made.sections) == ("test", "prompt", "My prompt", (one,))
    assert (made.output_type, made.container, made.allow_extra_keys) == (Answer, "object", True)
    assert repr(made) == "PromptTemplate[Answer](ns='test', key='prompt')"


def test_without_a_name_a_template_is_called_by_its_key():
    assert template().name == "prompt"


@pytest.mark.parametrize("field_name", ["ns", "key", "name", "sections", "allow_extra_keys", "output_type", "nodes"])
def test_a_template_is_frozen(field_name):
    for made in (template(), PromptTemplate[Answer](ns="test", key="prompt")):
        with pytest.raises(FrozenInstanceError):
            setattr(made, field_name, None)


def test_sections_may_come_from_anywhere():
    made = template(sections=(plain(key) for key in ("one", "two")))

    assert [one.key for one in made.sections] == ["one", "two"]
    assert [node.path for node in made.nodes] == ["one", "two"]


@pytest.mark.parametrize("key", ["", "No", "a b", "../up", "a" * 65, "prompt\n"])
def test_keys_and_namespaces_are_plain(key):
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
def test_two_sections_at_one_path_are_refused(sections):
    with pytest.raises(PromptValidationError, match=r"'prompt' has two sections with path 'one.*': change the key"):
        template(*sections)


def test_a_section_object_may_be_used_in_several_places_and_prompts():
    shared = plain("shared")

    template(plain("one", children=[shared]), plain("two", children=[shared]))
    template(shared)
    with pytest.raises(PromptValidationError, match="two sections with path 'shared'"):
        template(shared, shared)


@pytest.mark.parametrize("depth", [0, 1])
def test_a_placeholder_that_is_no_field_is_refused(depth):
    wrong: Section[Any] = section(template="About ${topic} and ${colour}.")
    with pytest.raises(PromptValidationError, match=r"uses \$\{colour\}, which is not a field of Params"):
        template(plain("up", children=[wrong]) if depth else wrong)


def test_a_placeholder_without_params_is_refused():
    with pytest.raises(PromptValidationError, match=r"uses \$\{topic\}, which is unknown: the section has no params"):
        template(plain(template="About ${topic}."))


@pytest.mark.parametrize("wrong", [MarkdownSection, "a section", None])
@pytest.mark.parametrize("depth", [0, 1])
def test_what_is_no_section_is_refused(wrong, depth):
    with pytest.raises(PromptValidationError, match="which is not a Section instance"):
        template(plain(children=[wrong]) if depth else wrong)


def test_a_function_where_a_tool_belongs_is_refused_and_says_what_to_do():
    with pytest.raises(PromptValidationError, match=r"'task': tools contains .*look.* not a Tool; use Tool\.wrap"):
        template(plain(tools=[look]))


def test_a_section_is_found_by_its_type_in_reading_order():
    kid = section("kid")
    lending = Lending("lending", {})
    made = template(plain("top", children=[kid]), lending)

    assert made.find_section(Lending) is lending
    assert made.find_section(MarkdownSection) is made.sections[0]
    assert made.find_section(type(kid)) is kid
    assert made.find_section(Declaring) is None
    assert Prompt(made).find_section(Lending) is lending


# ── Names of tools ───────────────────────────────────────────────────────────────────────────────────────────────────


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
    ids=["siblings", "far apart", "one section", "native twice", "native in two ways", "native and ours", "our own"],
)
def test_a_collision_names_both_origins(sections, collision):
    with pytest.raises(PromptValidationError, match=collision.replace(" .* ", " is declared by ")):
        template(*sections)


def test_a_tool_may_be_called_open_section_where_nothing_is_summarized():
    template(plain(tools=[Tool[Query, Answer](name="open_section", description="Open a section.", handler=look)]))


def test_two_tools_of_one_capability_collide_whatever_they_are_called():
    def provided(name: str) -> ProviderTool[None, Answer, None]:
        return ProviderTool[None, Answer, None](
            name=name, description="Run.", provider="openai", capability="code_interpreter", config=None
        )

    with pytest.raises(PromptValidationError, match="provider-run tool 'code_interpreter' is declared by section 'a'"):
        template(plain("a", tools=[provided("one")]), plain("b", tools=[provided("two")]))


# ── Output ───────────────────────────────────────────────────────────────────────────────────────────────────────────


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
def test_the_output_is_a_dataclass_a_list_of_one_or_text(output, output_type, container):
    made = cast("Any", PromptTemplate)[output](ns="test", key="prompt")

    assert (made.output_type, made.container) == (output_type, container)
    assert Prompt(made).render().output_type == output_type
    assert cast("Any", Prompt)[output](ns="test", key="prompt").template.container == container


@pytest.mark.parametrize("output", [int, dict, list, list[int], tuple[Answer, ...], Answer | None], ids=str)
def test_another_output_is_refused(output):
    with pytest.raises(PromptValidationError, match="output must be a dataclass, a list of one, or str"):
        cast("Any", PromptTemplate)[output](ns="test", key="prompt")


@pytest.mark.parametrize("output", [Imaginary, list[Imaginary]])
def test_an_output_without_a_schema_is_refused_when_the_template_is_built(output):
    with pytest.raises(PromptValidationError, match="invalid output type: 'Imaginary' has no JSON schema"):
        cast("Any", PromptTemplate)[output](ns="test", key="prompt")


# ── The prompt ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_prompt_builds_its_template_itself():
    one = section()
    made = Prompt[Answer](ns="test", key="prompt", name="Mine", sections=(one,), allow_extra_keys=True)

    assert (made.ns, made.key, made.name) == ("test", "prompt", "Mine")
    assert (made.template.sections, made.template.allow_extra_keys) == ((one,), True)
    assert made.template.output_type is Answer
    assert repr(made) == "Prompt(ns='test', key='prompt')"


def test_a_prompt_takes_a_template_or_what_makes_one():
    wrong: Any = Prompt
    for arguments, named in (((), {}), ((template(),), {"ns": "test", "key": "prompt"})):
        with pytest.raises(PromptValidationError, match="either a PromptTemplate or ns=, key= and sections="):
            wrong(*arguments, **named)
    with pytest.raises(PromptValidationError, match="Prompt takes a PromptTemplate, not 'text'"):
        wrong("text")


def test_binding_returns_the_prompt_itself():
    made = prompt(section())

    assert made.bind(Params("cats")) is made
    assert made.params == (Params("cats"),)
    assert made.render().text == "## 1. Task (task)\n\nAbout cats."


def test_of_two_params_of_one_type_the_last_counts():
    made = prompt(section()).bind(Params("cats"), Params("dogs")).bind(Params("cows"))

    assert made.params == (Params("cows"),)


def test_params_that_only_a_tool_knows_are_accepted():
    made = prompt(section(tools=[LOOK])).bind(Params("cats"), Query("hello"))

    assert made.render().text == "## 1. Task (task)\n\nAbout cats."


@pytest.mark.parametrize("stray", [Answer("x"), MoreParams("x"), "x", Params])
def test_params_that_nobody_knows_are_refused_and_the_known_are_named(stray):
    made = prompt(section())

    with pytest.raises(PromptValidationError, match=r"'prompt' has no section with params \w+ \(it has: Params\)"):
        made.bind(Params("cats"), stray)
    assert made.params == ()


def test_a_bound_copy_leaves_the_original_alone():
    original = prompt(section()).bind(Params("cats"))
    copy = original.with_params(Params("dogs"))

    assert (original.params, copy.params) == ((Params("cats"),), (Params("dogs"),))
    assert copy.template is original.template


def test_prompts_of_one_template_do_not_share_params():
    made = template(section())
    Prompt(made).bind(Params("cats"))

    assert Prompt(made).params == ()


# ── Resources ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_sections_lend_their_resources():
    files = InMemoryFilesystem()
    lent = prompt(plain("top", children=[Lending("files", {Filesystem: files})]), Lending("text", {str: "x"}))

    assert lent.resources().get(Filesystem) is files
    assert lent.resources().get(str) == "x"


def test_two_sections_may_not_lend_the_same():
    with pytest.raises(PromptValidationError, match=r"resource 'builtins.str' is declared by section 'a' and by sect"):
        prompt(Lending("a", {str: "x"}), Lending("b", {str: "y"})).resources()


def test_two_types_of_one_name_are_not_the_same():
    def client(marker: int) -> type:
        return type("Client", (), {"__qualname__": f"service{marker}.Client"})

    one, two = client(1), client(2)

    assert len(prompt(Lending("a", {one: one()}), Lending("b", {two: two()})).resources()) == 2
