"""`PromptTemplate`, an immutable and validated tree of sections, and `Prompt`, which binds parameters to it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast, get_args, get_origin, overload

from weakincentives.dbc import invariant
from weakincentives.errors import PromptValidationError, SchemaError
from weakincentives.prompt._types import SessionProtocol, SupportsDataclass
from weakincentives.prompt.disclosure import OPEN_SECTION
from weakincentives.prompt.generics import Parametric
from weakincentives.prompt.overrides import PromptDescriptor, PromptOverrides, describe_prompt
from weakincentives.prompt.rendering import Container, RenderedPrompt, UniqueNames, native_declarations, render
from weakincentives.prompt.section import Section, SectionVisibility, check_key, check_placeholders
from weakincentives.prompt.tool import PLAIN_TOOL_CHOICES, NamedTool, Tool, ToolChoice
from weakincentives.resources import ResourceRegistry
from weakincentives.serde import schema

if TYPE_CHECKING:
    from typing_extensions import TypeVar as WithDefault

    OutputT = WithDefault("OutputT", default=None)  # without an output type
else:
    OutputT = TypeVar("OutputT")
SectionT = TypeVar("SectionT", bound=Section[Any])


@dataclass(frozen=True)
class SectionNode:
    """A section with its path and depth in the tree."""

    section: Section[Any]
    path: str
    depth: int


def _has_unique_paths(template: PromptTemplate[Any]) -> bool:
    return len({node.path for node in template.nodes}) == len(template.nodes)


def _has_matching_container(template: PromptTemplate[Any]) -> bool:
    return (template.container is None) is (template.output_type in (None, str))


@invariant(_has_unique_paths, "section paths are unique")
@invariant(_has_matching_container, "structured output, and no other, has a container")
@dataclass(frozen=True, init=False, eq=False, repr=False)
class PromptTemplate(Parametric, Generic[OutputT]):
    """A prompt without parameters: `PromptTemplate[Output](ns=…, key=…, sections=[…])`.

    Keys, section paths, placeholders and tool names are validated on construction. `Output` is a dataclass, a `list`
    of a dataclass, or `str`; without it, the answer is plain text.

    `tool_choice` is "auto", "none", "required" or `NamedTool(…)`, and takes precedence over the adapter's; None leaves
    it to the adapter. That the named tool exists is checked by an evaluation, because adapters add tools.
    """

    ns: str
    key: str
    name: str
    sections: tuple[Section[Any], ...]
    allow_extra_keys: bool
    output_type: type[Any] | None
    container: Container | None
    tool_choice: ToolChoice | None
    nodes: tuple[SectionNode, ...]

    def __init__(
        self,
        *,
        ns: str,
        key: str,
        name: str | None = None,
        sections: Sequence[Section[Any]] = (),
        allow_extra_keys: bool = False,
        tool_choice: ToolChoice | None = None,
    ) -> None:
        check_key(ns, kind="prompt ns")
        check_key(key, kind="prompt key")
        sections = tuple(sections)
        output_type, container = _resolve_output(self.type_arguments)
        vars(self).update(
            ns=ns,
            key=key,
            name=name or key,
            sections=sections,
            allow_extra_keys=allow_extra_keys,
            output_type=output_type,
            container=container,
            tool_choice=tool_choice,
            nodes=tuple(_flatten(sections)),
        )
        self._check()

    def _check(self) -> None:
        seen: dict[str, Section[Any]] = {}
        for node in self.nodes:
            if node.path in seen:
                raise PromptValidationError(
                    f"prompt {self.name!r} has two sections with path {node.path!r}: change the key of one of them"
                )
            seen[node.path] = node.section
            check_placeholders(node.section, node.path)
        self._check_tools()
        choice = self.tool_choice
        if choice is not None and not isinstance(choice, NamedTool) and choice not in PLAIN_TOOL_CHOICES:
            raise PromptValidationError(
                f"prompt {self.name!r}: tool_choice must be 'auto', 'none', 'required', NamedTool(…) or None, and is "
                f"{choice!r}"
            )

    def _check_tools(self) -> None:
        names = UniqueNames("tool name")
        slots = UniqueNames("provider-run tool")
        if any(node.section.visibility is SectionVisibility.SUMMARY for node in self.nodes):
            names.add(OPEN_SECTION, "progressive disclosure")
        for node in self.nodes:
            section = node.section
            for tool in section.tools():
                if not isinstance(tool, Tool):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be unchecked
                    raise PromptValidationError(
                        f"section {node.path!r}: tools contains {tool!r}, which is not a Tool; use Tool.wrap(…)"
                    )
                if tool.declaration() is None:
                    names.add(tool.name, f"section {node.path!r}")
            for declared in native_declarations(section, section.tools(), node.path, section.default_params):
                names.add(declared.name, declared.origin)
                slots.add(declared.slot, declared.origin)

    @cached_property
    def descriptor(self) -> PromptDescriptor:
        """Hashes of the texts and tools, which overrides are matched against."""
        return describe_prompt(self.ns, self.key, ((node.path, node.section) for node in self.nodes))

    def find_section(self, section_type: type[SectionT]) -> SectionT | None:
        """The first section of a type, in reading order."""
        return next((node.section for node in self.nodes if isinstance(node.section, section_type)), None)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(ns={self.ns!r}, key={self.key!r})"


class Prompt(Parametric, Generic[OutputT]):
    """A template with bound parameters: `Prompt(template).bind(Params(…))`.

    `Prompt(ns=…, key=…, sections=…)` creates the template too.
    """

    @overload
    def __init__(self, template: PromptTemplate[OutputT], *, overrides: PromptOverrides | None = None) -> None: ...
    @overload
    def __init__(
        self,
        *,
        ns: str,
        key: str,
        name: str | None = None,
        sections: Sequence[Section[Any]] = (),
        allow_extra_keys: bool = False,
        tool_choice: ToolChoice | None = None,
        overrides: PromptOverrides | None = None,
    ) -> None: ...
    def __init__(
        self, template: PromptTemplate[OutputT] | None = None, *, overrides: PromptOverrides | None = None, **given: Any
    ) -> None:
        if (template is None) is (not given):
            raise PromptValidationError("Prompt takes either a PromptTemplate or ns=, key= and sections=")
        if template is None:
            cls = cast("Any", PromptTemplate)
            template = cls[self.type_arguments](**given) if self.type_arguments else cls(**given)
        if not isinstance(template, PromptTemplate):
            raise PromptValidationError(f"Prompt takes a PromptTemplate, not {template!r}")
        self.template = template
        self.overrides = overrides
        self._params: dict[type, SupportsDataclass] = {}

    @property
    def ns(self) -> str:
        return self.template.ns

    @property
    def key(self) -> str:
        return self.template.key

    @property
    def name(self) -> str:
        return self.template.name

    @property
    def params(self) -> tuple[SupportsDataclass, ...]:
        """The bound parameters."""
        return tuple(self._params.values())

    def bind(self, *params: SupportsDataclass) -> Self:
        """Bind parameters, one object per type; a later one of the same type replaces it.

        Parameter types of the prompt's tools are accepted too, without effect.
        """
        sections = {node.section.params_type for node in self.template.nodes}
        tools = {tool.params_type for node in self.template.nodes for tool in node.section.tools()}
        for value in params:
            kind = type(value)
            if kind not in sections and kind not in tools:
                known = ", ".join(sorted(known.__name__ for known in sections if known is not None)) or "none"
                raise PromptValidationError(
                    f"prompt {self.name!r} has no section with params {kind.__name__} (it has: {known})"
                )
        self._params.update({type(value): value for value in params})
        return self

    def with_params(self, *params: SupportsDataclass) -> Self:
        """A copy with additional parameters."""
        other = copy.copy(self)
        other._params = dict(self._params)  # noqa: SLF001 - another instance of this class
        return other.bind(*params)

    def render(self, *, session: SessionProtocol | None = None) -> RenderedPrompt[OutputT]:
        """Render text and tools. `session` holds which summarized sections were opened."""
        return render(self.template, self._params, overrides=self.overrides, session=session)

    def find_section(self, section_type: type[SectionT]) -> SectionT | None:
        """The first section of a type, in reading order."""
        return self.template.find_section(section_type)

    def resources(self) -> ResourceRegistry:
        """The resources of all sections. It is an error if two sections provide the same type."""
        merged = ResourceRegistry()
        origins = UniqueNames("resource")
        for node in self.template.nodes:
            resources = node.section.resources()
            for resource_type in resources:
                origins.add(f"{resource_type.__module__}.{resource_type.__qualname__}", f"section {node.path!r}")
            merged = merged.merge(resources)
        return merged

    def __repr__(self) -> str:
        return f"Prompt(ns={self.ns!r}, key={self.key!r})"


def _flatten(sections: Sequence[Section[Any]], parent_path: str = "", depth: int = 0) -> Iterator[SectionNode]:
    for section in sections:
        if not isinstance(section, Section):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be unchecked
            raise PromptValidationError(f"sections contains {section!r}, which is not a Section instance")
        path = f"{parent_path}.{section.key}" if parent_path else section.key
        yield SectionNode(section, path, depth)
        yield from _flatten(section.children, path, depth + 1)


def _resolve_output(arguments: tuple[Any, ...]) -> tuple[type[Any] | None, Container | None]:
    if not arguments or arguments[0] in (None, type(None), Any):
        return None, None
    output = arguments[0]
    if output is str:
        return str, None
    container: Container = "array" if get_origin(output) is list else "object"
    output_type = get_args(output)[0] if container == "array" else output
    if not is_dataclass(get_origin(output_type) or output_type):
        raise PromptValidationError(f"output must be a dataclass, a list of one, or str, not {output!r}")
    try:
        schema(output_type)
    except SchemaError as error:
        raise PromptValidationError(f"invalid output type: {error}") from error
    return output_type, container
