"""`Section`: a node of the prompt tree, with text, children and tools."""

from __future__ import annotations

import copy
import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Generic, Self, TypeVar, cast

from weakincentives.errors import PromptValidationError
from weakincentives.prompt._types import SessionProtocol, SupportsDataclass
from weakincentives.prompt.generics import Parametric
from weakincentives.prompt.native import NativeDeclaration
from weakincentives.prompt.tool import Tool
from weakincentives.resources import ResourceRegistry

ParamsT = TypeVar("ParamsT")

_KEY_RE = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class SectionVisibility(Enum):
    """How a section is rendered initially (progressive disclosure)."""

    FULL = "full"
    SUMMARY = "summary"
    """Only the summary; body, children and tools are added when the model opens the section."""


def check_key(key: str, *, kind: str) -> None:
    """Raise for an invalid key. Keys are used in section paths and file names."""
    if not _KEY_RE.fullmatch(key):
        raise PromptValidationError(
            f"{kind} {key!r} must start with a-z or 0-9, followed by up to 63 of a-z, 0-9, '.', '_' and '-'"
        )


def check_placeholders(section: Section[Any], path: str) -> None:
    """Raise if a placeholder of the text is not a field of the section's params."""
    params_type = section.params_type
    known = {field.name for field in fields(params_type)} if params_type else set[str]()
    if unknown := sorted(section.placeholders() - known):
        reason = f"not a field of {params_type.__name__}" if params_type else "unknown: the section has no params"
        raise PromptValidationError(f"section {path!r} uses ${{{unknown[0]}}}, which is {reason}")


class Section(Parametric, ABC, Generic[ParamsT]):
    """Base class of all sections. Subclass `Section[Params]` and implement `render`.

    Sections are immutable; `clone` returns a changed copy. `required_provider` is the provider whose adapter the
    section needs; None if every adapter will do.
    """

    required_provider: str | None = None

    def __init__(
        self,
        *,
        title: str,
        key: str,
        default_params: ParamsT | None = None,
        children: Sequence[Section[Any]] = (),
        enabled: Callable[..., bool] | None = None,
        tools: Sequence[Tool[Any, Any]] = (),
        accepts_overrides: bool = True,
        summary: str | None = None,
        visibility: SectionVisibility = SectionVisibility.FULL,
    ) -> None:
        self.title = title
        self.key = key
        self.default_params = default_params
        self.children = tuple(children)
        self.enabled = enabled
        self._tools = tuple(tools)
        self.accepts_overrides = accepts_overrides
        self.summary = summary
        self.visibility = visibility
        self._check()

    @property
    def params_type(self) -> type[Any] | None:
        """The dataclass of the section's parameters; None if it has none."""
        params_type = self.type_arguments[0] if self.type_arguments else type(self.default_params)
        return None if params_type in (None, type(None)) else params_type

    def _check(self) -> None:
        check_key(self.key, kind="section key")
        if not self.title.strip():
            raise PromptValidationError(f"section {self.key!r} needs a title")
        if self.params_type is not None and not is_dataclass(self.params_type):
            raise PromptValidationError(f"section {self.key!r}: params must be a dataclass, not {self.params_type!r}")
        if self.default_params is not None and not isinstance(self.default_params, self.params_type or object):
            raise PromptValidationError(
                f"section {self.key!r}: default_params is a {type(self.default_params).__name__}, "
                f"not {self.params_type!r}"
            )
        if self.enabled is not None:
            self._check_enabled(self.enabled)
        if self.visibility is SectionVisibility.SUMMARY and not self.summary:
            raise PromptValidationError(
                f"section {self.key!r} has visibility SUMMARY and needs a summary: set summary='…' to its short form"
            )

    def _check_enabled(self, enabled: Callable[..., bool]) -> None:
        try:
            inspect.signature(enabled)
        except (TypeError, ValueError) as error:
            raise PromptValidationError(
                f"section {self.key!r}: enabled is {enabled!r}, not a function such as `lambda params: …`"
            ) from error

    @abstractmethod
    def render(self, params: SupportsDataclass | None, depth: int, number: str) -> str:
        """The body, without its heading. A section without body and visible children is left out of the text."""

    def tools(self) -> tuple[Tool[Any, Any], ...]:
        """The tools of this section, client-run and native."""
        return self._tools

    def native_tools(
        self, params: SupportsDataclass | None = None
    ) -> tuple[NativeDeclaration | Mapping[str, Any], ...]:
        """Provider-run tools that are declared without a `Tool`; a mapping is a wire declaration."""
        _ = params
        return ()

    def resources(self) -> ResourceRegistry:
        """Resources that this section provides to tools, such as its filesystem."""
        return ResourceRegistry()

    def placeholders(self) -> frozenset[str]:
        """The fields of the params that the text refers to."""
        return frozenset()

    def text(self) -> str | None:
        """The text that an override can replace; None if there is none."""
        return None

    def with_text(self, text: str) -> Section[ParamsT]:
        """A copy with another text."""
        raise PromptValidationError(f"section {self.key!r} ({type(self).__name__}) has no text to override: {text!r}")

    def is_enabled(self, params: SupportsDataclass | None, *, session: SessionProtocol | None = None) -> bool:
        """Call `enabled`, which may take the params, a parameter `session`, both or neither."""
        if self.enabled is None:
            return True
        accepted = inspect.signature(self.enabled).parameters.values()
        takes_session = any(p.name == "session" and p.kind is not p.POSITIONAL_ONLY for p in accepted)
        by_name = {"session": session} if takes_session else {}
        positional = [p for p in accepted if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        takes_params = any(p.name not in by_name for p in positional)
        return bool(self.enabled(*((params,) if takes_params else ()), **by_name))

    def clone(self, **kwargs: object) -> Self:
        """A copy with some of the constructor's arguments changed."""
        other = copy.copy(self)
        for name, value in kwargs.items():
            attribute = "_tools" if name == "tools" else name
            if attribute not in vars(other):
                raise PromptValidationError(f"{type(self).__name__}.clone() has no argument {name!r}")
            is_sequence = name in ("children", "tools")
            setattr(other, attribute, tuple(cast("Iterable[object]", value)) if is_sequence else value)
        other._check()  # noqa: SLF001 - another instance of this class
        return other

    def __repr__(self) -> str:
        return f"{type(self).__name__}(key={self.key!r})"
