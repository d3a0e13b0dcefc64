from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot

from weakincentives.errors import PromptRenderError, PromptValidationError
from weakincentives.prompt import (
    MarkdownSection,
    NativeDeclaration,
    Prompt,
    PromptTemplate,
    Section,
    SectionVisibility,
    SupportsDataclass,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.prompt.rendering import UniqueNames
from weakincentives.runtime import Session


@dataclass
class Params:
    topic: str


@dataclass
class Defaults:
    topic: str = "cats"
    numbers: list[int] = field(default_factory=lambda: [1])
    computed: int = field(init=False, default=7)


@dataclass
class Answer:
    text: str


class TextlessSection(Section[Defaults]):
    """A section without text, with a native declaration."""

    def render(self, params: SupportsDataclass | None, depth: int, number: str) -> str:
        return ""

    def native_tools(self, params: SupportsDataclass | None = None) -> tuple[NativeDeclaration, ...]:
        return (NativeDeclaration("file_search", "file_search", config=params),)


class ArgumentSection(Section[None]):
    """A section that renders its arguments."""

    def render(self, params: SupportsDataclass | None, depth: int, number: str) -> str:
        return f"{params} {depth} {number}"


def tool(name: str) -> Tool[None, None]:
    def handle(params: None, *, context: ToolContext) -> ToolResult[None]:
        return ToolResult.ok(None)

    return Tool[None, None](name=name, description=f"The tool {name}.", handler=handle)


def plain(key: str, *children: Section[Any], **changes: Any) -> MarkdownSection[Any]:
    return MarkdownSection(**{"title": key.title(), "key": key, "template": "x", "children": children, **changes})


def prompt(*sections: Section[Any], **changes: Any) -> Prompt[Any]:
    return Prompt(ns="test", key="prompt", sections=sections, **changes)


def headings(*sections: Section[Any]) -> list[str]:
    return [line for line in prompt(*sections).render().text.splitlines() if line.startswith("#")]


# ── Text ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_heading_format():
    text = prompt(plain("task", plain("kid", plain("grandkid")), plain("other")), plain("end")).render().text

    assert text == snapshot("""\
## 1. Task (task)

x

### 1.1. Kid (task.kid)

x

#### 1.1.1. Grandkid (task.kid.grandkid)

x

### 1.2. Other (task.other)

x

## 2. End (end)

x\
""")


def test_heading_level_is_at_most_six():
    section = plain("s7")
    for depth in range(6, 0, -1):
        section = plain(f"s{depth}", section)

    assert [line.split(" ")[0].count("#") for line in headings(section)] == [2, 3, 4, 5, 6, 6, 6]


def test_section_without_text_is_omitted_and_not_numbered():
    assert headings(
        TextlessSection(title="Files", key="files"), plain("one"), plain("two", template=" "), plain("three")
    ) == [
        "## 1. One (one)",
        "## 2. Three (three)",
    ]


def test_section_without_text_has_a_heading_if_it_has_children():
    built = prompt(plain("top", plain("kid"), template=""))

    assert built.render().text == "## 1. Top (top)\n\n### 1.1. Kid (top.kid)\n\nx"
    assert prompt(plain("top", plain("kid", template=""), template="")).render().text == ""


def test_render_receives_params_depth_and_number():
    built = prompt(plain("first"), plain("top", ArgumentSection(title="Telling", key="telling")))

    assert built.render().text.endswith("### 2.1. Telling (top.telling)\n\nNone 1 2.1")


def test_prompt_without_sections_is_empty():
    assert prompt().render().text == ""


@given(st.recursive(st.just(()), lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=15))
def test_numbers_count_siblings_and_paths_join_keys(shape):
    def build(kids: tuple[Any, ...]) -> list[Section[Any]]:
        return [plain(f"k{at}", *build(inner)) for at, inner in enumerate(kids)]

    def expected(kids: tuple[Any, ...], number: str, path: str) -> list[tuple[str, str]]:
        return [
            line
            for at, inner in enumerate(kids)
            for line in (
                (f"{number}{at + 1}.", f"({path}k{at})"),
                *expected(inner, f"{number}{at + 1}.", f"{path}k{at}."),
            )
        ]

    assert [(line.split()[1], line.split()[-1]) for line in headings(*build(shape))] == expected(shape, "", "")


def test_section_text_includes_descendants():
    built = prompt(plain("task", plain("kid")), plain("task.other", plain("kid")), plain("task2"))
    rendered = built.render()

    assert rendered.section_text("task") == "## 1. Task (task)\n\nx\n\n### 1.1. Kid (task.kid)\n\nx"
    assert rendered.section_text("task.kid") == "### 1.1. Kid (task.kid)\n\nx"
    assert rendered.section_text("task2") == "## 3. Task2 (task2)\n\nx"
    assert rendered.section_text("missing") == ""


# ── Params ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def asking(**changes: Any) -> MarkdownSection[Params]:
    return MarkdownSection[Params](title="Task", key="task", template="About ${topic}.", **changes)


def test_bound_params_override_default_params():
    built = prompt(asking(default_params=Params("dogs")))

    assert built.render().text.endswith("About dogs.")
    assert built.bind(Params("cats")).render().text.endswith("About cats.")


def test_params_with_defaults_are_created():
    section = MarkdownSection[Defaults](title="Task", key="task", template="${topic} ${numbers} ${computed}")

    assert prompt(section).render().text.endswith("cats [1] 7")


def test_missing_params_error_names_section_and_type():
    with pytest.raises(PromptRenderError, match=r"section 'top.task' needs Params: bind it with prompt.bind\(Params\("):
        prompt(plain("top", asking())).render()


def test_bound_params_are_shared_by_all_sections_of_their_type():
    built = prompt(asking(), MarkdownSection[Params](title="Again", key="again", template="${topic}!"))

    assert built.bind(Params("cats")).render().text.count("cats") == 2


# ── Disabled sections ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_disabled_section_removes_its_subtree_and_tools():
    off = plain(
        "off",
        plain("kid", tools=[tool("below")]),
        TextlessSection(title="Files", key="files"),
        tools=[tool("gone")],
        enabled=lambda: False,
    )
    rendered = prompt(off, plain("on", tools=[tool("there")])).render()

    assert rendered.text == "## 1. On (on)\n\nx"
    assert [one.name for one in rendered.tools] == ["there"]
    assert rendered.native_tools == ()


def test_active_sections_include_those_without_text():
    silent = TextlessSection(title="Files", key="files")
    off = plain("off", plain("kid"), enabled=lambda: False)
    closed = plain("closed", plain("inner"), summary="More.", visibility=SectionVisibility.SUMMARY)
    kid = plain("kid")
    on = plain("on", kid)

    assert prompt(silent, off, closed, on).render().active == (silent, on, kid)


def test_enabled_may_depend_on_params_and_session():
    section = asking(enabled=lambda params, *, session: params.topic == "cats" and session is not None)
    built = prompt(section)

    assert built.bind(Params("cats")).render(session=Session()).text
    assert not built.bind(Params("cats")).render().text
    assert not built.bind(Params("dogs")).render(session=Session()).text


# ── Tools and output type ─────────────────────────────────────────────────────────────────────────────────────────────


def test_tools_are_in_document_order():
    rendered = prompt(
        plain("a", plain("b", tools=[tool("two")]), tools=[tool("one")]), plain("c", tools=[tool("three")])
    )

    assert [one.name for one in rendered.render().tools] == ["one", "two", "three"]


def test_native_declaration_has_params_and_origin():
    built = prompt(plain("top", TextlessSection(title="Files", key="files"))).bind(Defaults("dogs"))

    (declared,) = built.render().native_tools

    assert declared.config == Defaults("dogs")
    assert declared.origin == "section 'top.files'"


def test_rendered_prompt_has_the_output_type():
    rendered = Prompt(PromptTemplate[list[Answer]](ns="test", key="prompt", allow_extra_keys=True)).render()

    assert (rendered.output_type, rendered.container, rendered.allow_extra_keys) == (Answer, "array", True)
    assert (rendered.descriptor.ns, rendered.descriptor.key) == ("test", "prompt")


def test_find_tool():
    rendered = prompt(plain("a", tools=[tool("one"), tool("two")])).render()

    assert rendered.find_tool("two") is rendered.tools[1]
    assert rendered.find_tool("three") is None


def test_rendered_prompt_is_frozen():
    with pytest.raises(FrozenInstanceError):
        prompt().render().text = "other"  # pyright: ignore[reportAttributeAccessIssue] - the point of the test


def test_rendering_is_deterministic():
    built = prompt(plain("a", tools=[tool("one")]), asking()).bind(Params("cats"))

    assert built.render() == built.render()


def test_unique_names_rejects_a_duplicate():
    names = UniqueNames("thing")
    names.add("x", "here")
    names.add("y", "here")

    with pytest.raises(PromptValidationError, match="thing 'x' is declared by here and by there"):
        names.add("x", "there")
