"""From a template and its parameters to what a model is given. Pure."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

from weakincentives.dbc import ensure
from weakincentives.errors import PromptRenderError, PromptValidationError
from weakincentives.prompt._types import SessionProtocol, SupportsDataclass
from weakincentives.prompt.disclosure import OPEN_SECTION, open_section_tool, opened_paths
from weakincentives.prompt.native import NativeDeclaration
from weakincentives.prompt.overrides import PromptDescriptor, PromptOverrides
from weakincentives.prompt.section import Section, SectionVisibility, check_placeholders
from weakincentives.prompt.tool import Tool

if TYPE_CHECKING:
    from weakincentives.prompt.template import PromptTemplate

if TYPE_CHECKING:
    from typing_extensions import TypeVar as WithDefault

    OutputT = WithDefault("OutputT", default=None)  # a prompt that names no output has none
else:
    OutputT = TypeVar("OutputT")
Container: TypeAlias = Literal["object", "array"]

_logger = logging.getLogger(__name__)
_MAX_HEADING_LEVEL = 6


@dataclass(frozen=True)
class RenderedSection:
    """The heading and body of one section, without its children."""

    path: str
    text: str
    depth: int


@dataclass(frozen=True)
class RenderedPrompt(Generic[OutputT]):
    """What a model is given: text, our tools, the provider's tools, and the shape of the answer."""

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
    """The sections that take part, in reading order: neither disabled nor only summarized."""

    def section_text(self, path: str) -> str:
        """The text of a section and everything below it."""
        at = next((at for at, part in enumerate(self.sections) if part.path == path), len(self.sections))
        below = takewhile(lambda part: part.depth > self.sections[at].depth, self.sections[at + 1 :])
        return "\n\n".join(part.text for part in (*self.sections[at : at + 1], *below))

    def find_tool(self, name: str) -> Tool[Any, Any] | None:
        """The tool of ours with this name."""
        return next((tool for tool in self.tools if tool.name == name), None)


class UniqueNames:
    """Who claimed a name; a second claim is refused, naming both."""

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
    """Every provider-run tool of a section, in whichever way it was declared."""
    from_tools = (tool.declaration() for tool in tools)
    declared = [one for one in from_tools if one is not None]
    declared += map(NativeDeclaration.of, section.native_tools(params))
    return tuple(one if one.origin else replace(one, origin=f"section {path!r}") for one in declared)


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
    """Walk the tree once."""
    descriptor = template.descriptor
    effective = PromptOverrides(template.ns, template.key)
    if overrides is not None:
        effective, stale = overrides.match(descriptor)
        descriptor = replace(descriptor, stale=stale)
        for reason in stale:
            _logger.warning("override not applied: %s (prompt %s/%s)", reason, template.ns, template.key)
    walk = _Renderer(params, effective, session, opened_paths(template.ns, template.key, session))
    walk.render_siblings(template.sections, above="", depth=0, prefix="")
    if walk.summarized:
        walk.tools.append(open_section_tool())
    return RenderedPrompt(
        text="\n\n".join(part.text for part in walk.parts),
        tools=tuple(walk.tools),
        native_tools=tuple(walk.native_tools),
        output_type=template.output_type,
        container=template.container,
        allow_extra_keys=template.allow_extra_keys,
        descriptor=descriptor,
        sections=tuple(walk.parts),
        summarized=frozenset(walk.summarized),
        active=tuple(walk.active),
    )


@dataclass
class _Renderer:
    """What a walk over the tree has gathered so far."""

    params: Mapping[type, SupportsDataclass]
    overrides: PromptOverrides
    session: SessionProtocol | None
    opened: frozenset[str]
    parts: list[RenderedSection] = field(default_factory=list[RenderedSection])
    tools: list[Tool[Any, Any]] = field(default_factory=list[Tool[Any, Any]])
    native_tools: list[NativeDeclaration] = field(default_factory=list[NativeDeclaration])
    summarized: list[str] = field(default_factory=list[str])
    active: list[Section[Any]] = field(default_factory=list[Section[Any]])

    def render_siblings(self, siblings: Sequence[Section[Any]], *, above: str, depth: int, prefix: str) -> None:
        """Number only what leaves a trace in the text, so that the model sees no gaps."""
        count = 1
        for section in siblings:
            path = f"{above}.{section.key}" if above else section.key
            count += self.render_section(section, path, depth, f"{prefix}{count}")

    def render_section(self, section: Section[Any], path: str, depth: int, number: str) -> bool:
        """Gather one section and what is below it; whether there was any text."""
        params = self._params_for(section, path)
        if not section.is_enabled(params, session=self.session):
            return False
        if section.visibility is SectionVisibility.SUMMARY and path not in self.opened:
            self.summarized.append(path)
            shown = f"{section.summary}\n\n(Summary only. Call `{OPEN_SECTION}` with path `{path}` for the rest.)"
            self.parts.append(RenderedSection(path, f"{_heading(section, path, depth, number)}\n\n{shown}", depth))
            return True
        self.active.append(section)
        self._collect_tools(section, path, params)
        body = self._apply_override(section, path).render(params, depth, number).strip()
        at = len(self.parts)
        self.render_siblings(section.children, above=path, depth=depth + 1, prefix=f"{number}.")
        if not body and len(self.parts) == at:
            return False
        heading = _heading(section, path, depth, number)
        self.parts.insert(at, RenderedSection(path, f"{heading}\n\n{body}" if body else heading, depth))
        return True

    def _apply_override(self, section: Section[Any], path: str) -> Section[Any]:
        override = self.overrides.sections.get(path)
        if override is None:
            return section
        other = section.with_text(override.body)
        check_placeholders(other, path)
        return other

    def _collect_tools(self, section: Section[Any], path: str, params: SupportsDataclass | None) -> None:
        overrides = self.overrides.tools
        tools = [overrides[tool.name].apply(tool) if tool.name in overrides else tool for tool in section.tools()]
        self.tools += (tool for tool in tools if tool.declaration() is None)
        self.native_tools += native_declarations(section, tools, path, params)

    def _params_for(self, section: Section[Any], path: str) -> SupportsDataclass | None:
        wanted = section.params_type
        if wanted is None:
            return None
        if wanted in self.params:
            return self.params[wanted]
        if section.default_params is not None:
            return section.default_params
        if all(one.default is not MISSING or one.default_factory is not MISSING for one in fields(wanted) if one.init):
            return wanted()
        raise PromptRenderError(
            f"section {path!r} needs {wanted.__name__}: bind it with prompt.bind({wanted.__name__}(…))"
        )


def _heading(section: Section[Any], path: str, depth: int, number: str) -> str:
    return f"{'#' * min(depth + 2, _MAX_HEADING_LEVEL)} {number}. {section.title} ({path})"
