"""`MarkdownSection`: a section whose body is a `string.Template` with `${placeholders}`."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from string import Template
from typing import Any, Generic

from weakincentives.errors import PromptValidationError
from weakincentives.prompt._types import SupportsDataclass
from weakincentives.prompt.section import ParamsT, Section, SectionVisibility
from weakincentives.prompt.tool import Tool


class MarkdownSection(Section[ParamsT], Generic[ParamsT]):
    """`MarkdownSection[Params](title=…, key=…, template="Summarize ${topic}.")`. `$$` is a dollar sign."""

    def __init__(
        self,
        *,
        title: str,
        key: str,
        template: str,
        default_params: ParamsT | None = None,
        children: Sequence[Section[Any]] = (),
        enabled: Callable[..., bool] | None = None,
        tools: Sequence[Tool[Any, Any]] = (),
        accepts_overrides: bool = True,
        summary: str | None = None,
        visibility: SectionVisibility = SectionVisibility.FULL,
    ) -> None:
        self.template = template
        super().__init__(
            title=title,
            key=key,
            default_params=default_params,
            children=children,
            enabled=enabled,
            tools=tools,
            accepts_overrides=accepts_overrides,
            summary=summary,
            visibility=visibility,
        )

    def _check(self) -> None:
        super()._check()
        self._compiled = Template(textwrap.dedent(self.template).strip())
        if not self._compiled.is_valid():
            raise PromptValidationError(
                f"section {self.key!r}: invalid placeholder in the template; write ${{name}}, or $$ for a dollar sign"
            )
        self._placeholders = frozenset(self._compiled.get_identifiers())

    def render(self, params: SupportsDataclass | None, depth: int, number: str) -> str:
        _ = depth, number
        values = {name: getattr(params, name) for name in self._placeholders}
        return self._compiled.substitute(values)

    def placeholders(self) -> frozenset[str]:
        return self._placeholders

    def text(self) -> str | None:
        return self.template

    def with_text(self, text: str) -> Section[ParamsT]:
        return super().clone(template=text)  # a subclass may override clone() without `template`
