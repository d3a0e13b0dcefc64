from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from weakincentives.errors import PromptValidationError
from weakincentives.prompt import (
    MarkdownSection,
    Section,
    SectionVisibility,
    SupportsDataclass,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.prompt.section import check_key
from weakincentives.runtime import Session


@dataclass
class Params:
    topic: str = "cats"


@dataclass
class OtherParams:
    topic: str = "dogs"


class Plain(Section[Params]):
    def render(self, params: SupportsDataclass | None, depth: int, number: str) -> str:
        return f"{params} {depth} {number}"


class WithConstructor(Section[Params]):
    """A section with its own constructor and clone, as in the specs."""

    def __init__(self, *, model: str, default_params: Params | None = None) -> None:
        super().__init__(title="Own", key="own", default_params=default_params or Params(), accepts_overrides=False)
        self.model = model

    def render(self, params: SupportsDataclass | None, depth: int, number: str) -> str:
        return self.model


def nothing(params: None, *, context: ToolContext) -> ToolResult[None]:
    """Do nothing."""
    return ToolResult.ok(None)


def section(**changes: Any) -> Plain:
    return Plain(**{"title": "Task", "key": "task", **changes})


# ── Construction ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_default_arguments():
    built = section()

    assert (built.title, built.key, built.default_params, built.children) == ("Task", "task", None, ())
    assert (built.enabled, built.tools(), built.native_tools(), built.accepts_overrides) == (None, (), (), True)
    assert (built.summary, built.visibility) == (None, SectionVisibility.FULL)
    assert len(built.resources()) == 0
    assert built.placeholders() == frozenset()
    assert built.text() is None


def test_render_is_abstract():
    with pytest.raises(TypeError, match=r"abstract method '?render'?"):
        cast("Any", Section[Params])(title="Task", key="task")


@pytest.mark.parametrize("key", ["a", "0", "task", "a.b_c-d", "a" * 64])
def test_valid_keys(key):
    assert section(key=key).key == key


@pytest.mark.parametrize("key", ["", ".a", "-a", "_a", "Task", "a b", "a/b", "é", "a" * 65, "task\n", "\ntask", "a\0"])
def test_invalid_keys_are_rejected(key):
    with pytest.raises(PromptValidationError, match=r"section key .* must start with a-z or 0-9"):
        section(key=key)
    with pytest.raises(PromptValidationError, match=r"^my key .* must start"):
        check_key(key, kind="my key")


@pytest.mark.parametrize("title", ["", "  "])
def test_title_is_required(title):
    with pytest.raises(PromptValidationError, match="section 'task' needs a title"):
        section(title=title)


def test_params_type_from_the_class_or_from_default_params():
    assert section().params_type is Params
    assert MarkdownSection(title="T", key="t", template="x", default_params=OtherParams()).params_type is OtherParams
    assert MarkdownSection(title="T", key="t", template="x").params_type is None
    assert MarkdownSection[None](title="T", key="t", template="x").params_type is None


@pytest.mark.parametrize("params", [int, dict, list[Params], "Params"])
def test_params_must_be_a_dataclass(params):
    with pytest.raises(PromptValidationError, match="section 't': params must be a dataclass"):
        cast("Any", MarkdownSection)[params](title="T", key="t", template="x")


def test_default_params_of_another_type_are_rejected():
    with pytest.raises(PromptValidationError, match=r"section 'task': default_params is a OtherParams, not .*Params"):
        section(default_params=OtherParams())


def test_summary_visibility_requires_a_summary():
    with pytest.raises(PromptValidationError, match="section 'task' has visibility SUMMARY and needs a summary"):
        section(visibility=SectionVisibility.SUMMARY)

    assert section(visibility=SectionVisibility.SUMMARY, summary="In short.").summary == "In short."


def test_repr():
    assert repr(section()) == "Plain(key='task')"


# ── Enabled ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Switch:
    def __call__(self, params: Params) -> bool:
        return params.topic == "cats"


@pytest.mark.parametrize(
    "enabled",
    [
        None,
        lambda: True,
        lambda params: params.topic == "cats",
        lambda params, /: params.topic == "cats",
        lambda *, session: session.session_id == "s1",
        lambda session: session.session_id == "s1",
        lambda params, *, session: params.topic == "cats" and session.session_id == "s1",
        lambda params, session: params.topic == "cats" and session.session_id == "s1",
        lambda session=None: session is not None,
        lambda params, **rest: params.topic == "cats",
        Switch(),
        lambda: "anything true",
    ],
)
def test_signatures_of_enabled(enabled):
    assert section(enabled=enabled).is_enabled(Params(), session=Session(session_id="s1")) is True


@pytest.mark.parametrize(
    "enabled",
    [lambda: False, lambda params: params.topic != "cats", lambda session: session is not None, lambda params: 0],
)
def test_enabled_may_return_false(enabled):
    assert section(enabled=enabled).is_enabled(Params()) is False


@pytest.mark.parametrize("enabled", [True, False, "yes"])
def test_enabled_must_be_callable(enabled):
    with pytest.raises(PromptValidationError, match=r"section 'task': enabled is .*, not a function"):
        section(enabled=enabled)


# ── Clones ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_clone_changes_only_the_given_arguments():
    tool = Tool.wrap(nothing)
    original = section(tools=[tool], children=[section(key="kid")])
    clone = original.clone(title="Other", default_params=Params("dogs"))

    assert (clone.title, clone.default_params) == ("Other", Params("dogs"))
    assert (clone.key, clone.tools(), clone.children) == ("task", (tool,), original.children)
    assert (original.title, original.default_params) == ("Task", None)
    assert type(clone) is Plain


def test_clone_with_other_children_and_tools():
    clone = section().clone(children=[section(key="kid")], tools=[Tool.wrap(nothing)])

    assert [kid.key for kid in clone.children] == ["kid"]
    assert [tool.name for tool in clone.tools()] == ["nothing"]


def test_clone_is_validated():
    with pytest.raises(PromptValidationError, match="section key"):
        section().clone(key="No Key")
    with pytest.raises(PromptValidationError, match="default_params"):
        section().clone(default_params=OtherParams())


def test_clone_rejects_unknown_arguments():
    with pytest.raises(PromptValidationError, match=r"Plain.clone\(\) has no argument 'colour'"):
        section().clone(colour="red")


def test_clone_of_a_section_with_its_own_constructor():
    clone = WithConstructor(model="a").clone(model="b", default_params=Params("dogs"))

    assert (clone.model, clone.default_params, clone.accepts_overrides) == ("b", Params("dogs"), False)


def test_with_text_of_a_section_without_text_is_rejected():
    with pytest.raises(PromptValidationError, match=r"section 'task' \(Plain\) has no text to override"):
        section().with_text("other")
