"""Rendering: turns a prompt template and its parameters into text, tools and native tools. No I/O."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

from weakincentives.dbc import ensure
from weakincentives.errors import PromptRenderError, PromptValidationError
from weakincentives.prompt._types import SessionProtocol, SupportsDataclass
from weakincentives.prompt.disclosure import OPEN_SECTION, open_section_tool, opened_paths
from weakincentives.prompt.native import NativeDeclaration
from weakincentives.prompt.overrides import PromptDescriptor, PromptOverrides
from weakincentives.prompt.section import Section, SectionVisibility, check_placeholders
from weakincentives.prompt.tool import Tool, ToolChoice

if TYPE_CHECKING:
    from typing_extensions import TypeVar as WithDefault

    from weakincentives.prompt.template import PromptTemplate

    OutputT = WithDefault("OutputT", default=None)  # without an output type
else:
    OutputT = TypeVar("OutputT")
Container: TypeAlias = Literal["object", "array"]

_logger = logging.getLogger(__name__)
_MAX_HEADING_LEVEL = 6


@dataclass(frozen=True)
class RenderedSection:
    """Heading and body of one section, without its children."""

    path: str
    text: str
    depth: int


@dataclass(frozen=True)
class RenderedPrompt(Generic[OutputT]):
    """A rendered prompt: text, client-run tools, provider-run tools, and the type of the output."""

    text: str
    tools: tuple[Tool[Any, Any], ...]
    native_tools: tuple[NativeDeclaration, ...]
    output_type: type[Any] | None
    container: Container | None
    allow_extra_keys: bool
    descriptor: PromptDescriptor
    sections: tuple[RenderedSection, ...] = ()
    summarized: frozenset[str] = frozenset()
    active: tuple[Section[Any], ...] = ()
    """The sections that are neither disabled nor summarized, in document order."""
    tool_choice: ToolChoice | None = None
    """The tool choice of the prompt; None leaves it to the adapter."""

    def section_text(self, path: str) -> str:
        """The text of a section with its descendants."""
        start = next((index for index, part in enumerate(self.sections) if part.path == path), len(self.sections))
        descendants = takewhile(lambda part: part.depth > self.sections[start].depth, self.sections[start + 1 :])
        return "\n\n".join(part.text for part in (*self.sections[start : start + 1], *descendants))

    def find_tool(self, name: str) -> Tool[Any, Any] | None:
        """The client-run tool with this name."""
        return next((tool for tool in self.tools if tool.name == name), None)


class UniqueNames:
    """Names with their origins; adding a name twice is an error that names both origins."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._owners: dict[str, str] = {}

    def add(self, name: str, origin: str) -> None:
        if name in self._owners:
            raise PromptValidationError(f"{self._kind} {name!r} is declared by {self._owners[name]} and by {origin}")
        self._owners[name] = origin


def native_declarations(
    section: Section[Any], tools: Iterable[Tool[Any, Any]], path: str, params: SupportsDataclass | None
) -> tuple[NativeDeclaration, ...]:
    """All provider-run tools of a section: its native `Tool`s and its `native_tools()`."""
    from_tools = (tool.declaration() for tool in tools)
    declared = [native for native in from_tools if native is not None]
    declared += map(NativeDeclaration.of, section.native_tools(params))
    origin = f"section {path!r}"
    return tuple(native if native.origin else replace(native, origin=origin) for native in declared)


@ensure(
    lambda result: bool(result.summarized) is (result.find_tool(OPEN_SECTION) is not None),
    f"a prompt has the tool {OPEN_SECTION!r} exactly if it has summarized sections",
)
def render(
    template: PromptTemplate[OutputT],
    params: Mapping[type, SupportsDataclass],
    *,
    overrides: PromptOverrides | None,
    session: SessionProtocol | None,
) -> RenderedPrompt[OutputT]:
    """Render a template: walks its sections once, applies overrides, and collects tools."""
    descriptor = template.descriptor
    effective = PromptOverrides(template.ns, template.key)
    if overrides is not None:
        effective, stale = overrides.match(descriptor)
        descriptor = replace(descriptor, stale=stale)
        for reason in stale:
            _logger.warning("override not applied: %s (prompt %s/%s)", reason, template.ns, template.key)
    renderer = _Renderer(params, effective, session, opened_paths(template.ns, template.key, session))
    renderer.render_siblings(template.sections, parent_path="", depth=0, prefix="")
    if renderer.summarized:
        renderer.tools.append(open_section_tool())
    return RenderedPrompt(
        text="\n\n".join(part.text for part in renderer.parts),
        tools=tuple(renderer.tools),
        native_tools=tuple(renderer.native_tools),
        output_type=template.output_type,
        container=template.container,
        allow_extra_keys=template.allow_extra_keys,
        descriptor=descriptor,
        sections=tuple(renderer.parts),
        summarized=frozenset(renderer.summarized),
        active=tuple(renderer.active),
        tool_choice=template.tool_choice,
    )


@dataclass
class _Renderer:
    """Depth-first traversal of the sections that collects text, tools and declarations."""

    params: Mapping[type, SupportsDataclass]
    overrides: PromptOverrides
    session: SessionProtocol | None
    opened: frozenset[str]
    parts: list[RenderedSection] = field(default_factory=list[RenderedSection])
    tools: list[Tool[Any, Any]] = field(default_factory=list[Tool[Any, Any]])
    native_tools: list[NativeDeclaration] = field(default_factory=list[NativeDeclaration])
    summarized: list[str] = field(default_factory=list[str])
    active: list[Section[Any]] = field(default_factory=list[Section[Any]])

    def render_siblings(self, siblings: Sequence[Section[Any]], *, parent_path: str, depth: int, prefix: str) -> None:
        """Render sibling sections. Sections without text get no number, so that the numbering has no gaps."""
        count = 1
        for section in siblings:
            path = f"{parent_path}.{section.key}" if parent_path else section.key
            count += self.render_section(section, path, depth, f"{prefix}{count}")

    def render_section(self, section: Section[Any], path: str, depth: int, number: str) -> bool:
        """Render one section with its descendants; False if they have no text."""
        params = self._params_for(section, path)
        if not section.is_enabled(params, session=self.session):
            return False
        if section.visibility is SectionVisibility.SUMMARY and path not in self.opened:
            self.summarized.append(path)
            shown = f"{section.summary}\n\n(Summary only. Call `{OPEN_SECTION}` with path `{path}` for the rest.)"
            self.parts.append(RenderedSection(path, f"{_heading(section, path, depth, number)}\n\n{shown}", depth))
            return True
        self.active.append(section)
        native = self._collect_tools(section, path, params)
        text = self._apply_override(section, path).render(params, depth, number).strip()
        body = "\n\n".join(part for part in (text, _describe_native(native)) if part)
        start = len(self.parts)
        self.render_siblings(section.children, parent_path=path, depth=depth + 1, prefix=f"{number}.")
        if not body and len(self.parts) == start:
            return False
        heading = _heading(section, path, depth, number)
        self.parts.insert(start, RenderedSection(path, f"{heading}\n\n{body}" if body else heading, depth))
        return True

    def _apply_override(self, section: Section[Any], path: str) -> Section[Any]:
        override = self.overrides.sections.get(path)
        if override is None:
            return section
        other = section.with_text(override.body)
        check_placeholders(other, path)
        return other

    def _collect_tools(
        self, section: Section[Any], path: str, params: SupportsDataclass | None
    ) -> tuple[NativeDeclaration, ...]:
        """Collect the tools of a section; returns those that the provider runs."""
        overrides = self.overrides.tools
        tools = [overrides[tool.name].apply(tool) if tool.name in overrides else tool for tool in section.tools()]
        self.tools += (tool for tool in tools if tool.declaration() is None)
        native = native_declarations(section, tools, path, params)
        self.native_tools += native
        return native

    def _params_for(self, section: Section[Any], path: str) -> SupportsDataclass | None:
        params_type = section.params_type
        if params_type is None:
            return None
        if params_type in self.params:
            return self.params[params_type]
        if section.default_params is not None:
            return section.default_params
        if all(_has_default(field) for field in fields(params_type) if field.init):
            return params_type()
        raise PromptRenderError(
            f"section {path!r} needs {params_type.__name__}: bind it with prompt.bind({params_type.__name__}(…))"
        )


def _describe_native(declared: Iterable[NativeDeclaration]) -> str:
    """The texts about provider-run tools, in order of declaration. The model knows such a tool by its capability."""
    described = ((one.capability, one.tool.prompt_text()) for one in declared if one.tool is not None)
    return "\n\n".join(f"Tool `{capability}`: {text}" for capability, text in described if text)


def _heading(section: Section[Any], path: str, depth: int, number: str) -> str:
    return f"{'#' * min(depth + 2, _MAX_HEADING_LEVEL)} {number}. {section.title} ({path})"


def _has_default(field: Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING
