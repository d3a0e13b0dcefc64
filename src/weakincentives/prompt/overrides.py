"""Other words for a prompt, from JSON files, applied only while the original is what they were written for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from weakincentives.errors import PromptValidationError
from weakincentives.filesystem import Filesystem
from weakincentives.prompt.section import Section
from weakincentives.prompt.tool import Tool
from weakincentives.serde import dump_json, parse_json


@dataclass(frozen=True)
class SectionDescriptor:
    """One section's text, as a hash."""

    path: str
    hash: str
    accepts_overrides: bool


@dataclass(frozen=True)
class ToolDescriptor:
    """One tool's description and parameters, as a hash."""

    name: str
    hash: str
    accepts_overrides: bool


@dataclass(frozen=True)
class PromptDescriptor:
    """What a prompt is made of, by hash; `stale` says which overrides were not applied, and why."""

    ns: str
    key: str
    sections: tuple[SectionDescriptor, ...] = ()
    tools: tuple[ToolDescriptor, ...] = ()
    stale: tuple[str, ...] = ()


@dataclass(frozen=True)
class SectionOverride:
    """Another body for a section."""

    expected_hash: str
    body: str


@dataclass(frozen=True)
class ToolOverride:
    """Another description for a tool and its parameters."""

    expected_hash: str
    description: str | None = None
    param_descriptions: dict[str, str] = field(default_factory=dict[str, str])

    def apply(self, tool: Tool[Any, Any]) -> Tool[Any, Any]:
        """The tool in these words."""
        return tool.with_descriptions(self.description or tool.description, self.param_descriptions)


@dataclass(frozen=True)
class PromptOverrides:
    """All overrides of one prompt: sections by path, tools by name."""

    ns: str
    prompt_key: str
    sections: dict[str, SectionOverride] = field(default_factory=dict[str, SectionOverride])
    tools: dict[str, ToolOverride] = field(default_factory=dict[str, ToolOverride])

    @staticmethod
    def from_json(text: str | bytes) -> PromptOverrides:
        """Read what `to_json` wrote, or a person did."""
        return parse_json(text, PromptOverrides)

    def to_json(self) -> str:
        return dump_json(self)

    def match(self, descriptor: PromptDescriptor) -> tuple[PromptOverrides, tuple[str, ...]]:
        """The part of these that fits the prompt, and why the rest does not."""
        if (self.ns, self.prompt_key) != (descriptor.ns, descriptor.key):
            raise PromptValidationError(
                f"overrides for prompt {self.ns}/{self.prompt_key} were given to {descriptor.ns}/{descriptor.key}"
            )
        stale: list[str] = []
        sections = _matching_names("section", self.sections, {one.path: one for one in descriptor.sections}, stale)
        tools = _matching_names("tool", self.tools, {one.name: one for one in descriptor.tools}, stale)
        fitting = PromptOverrides(
            self.ns,
            self.prompt_key,
            {path: self.sections[path] for path in sections},
            {name: self.tools[name] for name in tools},
        )
        return fitting, tuple(stale)


class OverrideStore:
    """Overrides as files `{ns}/{key}.json` of any filesystem."""

    def __init__(self, filesystem: Filesystem) -> None:
        self._filesystem = filesystem

    def load(self, ns: str, key: str) -> PromptOverrides | None:
        """The overrides of a prompt; None where there are none."""
        path = f"{ns}/{key}.json"
        if not self._filesystem.is_file(path):
            return None
        return PromptOverrides.from_json(self._filesystem.read_bytes(path))

    def save(self, overrides: PromptOverrides) -> None:
        """Write a prompt's overrides, in place of those it had."""
        self._filesystem.write_text(f"{overrides.ns}/{overrides.prompt_key}.json", overrides.to_json() + "\n")


def describe_prompt(ns: str, key: str, sections: Iterable[tuple[str, Section[Any]]]) -> PromptDescriptor:
    """Hash everything that an override could replace."""
    texts: list[SectionDescriptor] = []
    tools: list[ToolDescriptor] = []
    for path, section in sections:
        text = section.text()
        if text is not None:
            texts.append(SectionDescriptor(path, _hash(text), section.accepts_overrides))
        for tool in section.tools():
            words = dump_json({"description": tool.description, "parameters": tool.spec().parameters})
            tools.append(ToolDescriptor(tool.name, _hash(words), tool.accepts_overrides))
    return PromptDescriptor(ns, key, tuple(texts), tuple(tools))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _matching_names(
    kind: str,
    overrides: Mapping[str, SectionOverride] | Mapping[str, ToolOverride],
    originals: Mapping[str, SectionDescriptor] | Mapping[str, ToolDescriptor],
    stale: list[str],
) -> list[str]:
    fitting: list[str] = []
    for name, override in overrides.items():
        original = originals.get(name)
        if original is None:
            stale.append(f"{kind} {name!r} does not exist")
        elif not original.accepts_overrides:
            stale.append(f"{kind} {name!r} does not accept overrides")
        elif original.hash != override.expected_hash:
            stale.append(f"{kind} {name!r} has changed since the override was written")
        else:
            fitting.append(name)
    return fitting
