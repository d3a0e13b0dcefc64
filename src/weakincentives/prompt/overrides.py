"""Prompt overrides: section bodies and tool descriptions from JSON files, applied while the stored hash matches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from weakincentives.errors import PromptValidationError
from weakincentives.filesystem import Filesystem
from weakincentives.prompt.section import Section
from weakincentives.prompt.tool import Tool
from weakincentives.serde import dump_json, parse_json


@dataclass(frozen=True)
class SectionDescriptor:
    """Hash of a section's text."""

    path: str
    hash: str
    accepts_overrides: bool


@dataclass(frozen=True)
class ToolDescriptor:
    """Hash of a tool's description and parameters."""

    name: str
    hash: str
    accepts_overrides: bool


@dataclass(frozen=True)
class PromptDescriptor:
    """Hashes of a prompt's sections and tools; `stale` has the reason for each override that was not applied."""

    ns: str
    key: str
    sections: tuple[SectionDescriptor, ...] = ()
    tools: tuple[ToolDescriptor, ...] = ()
    stale: tuple[str, ...] = ()


@dataclass(frozen=True)
class SectionOverride:
    """Replacement body of a section."""

    expected_hash: str
    body: str


@dataclass(frozen=True)
class ToolOverride:
    """Replacement descriptions of a tool and its parameters."""

    expected_hash: str
    description: str | None = None
    param_descriptions: dict[str, str] = field(default_factory=dict[str, str])

    def apply(self, tool: Tool[Any, Any]) -> Tool[Any, Any]:
        """The tool with these descriptions."""
        return tool.with_descriptions(self.description or tool.description, self.param_descriptions)


OverrideT = TypeVar("OverrideT", SectionOverride, ToolOverride)


@dataclass(frozen=True)
class PromptOverrides:
    """All overrides of one prompt: sections by path, tools by name."""

    ns: str
    prompt_key: str
    sections: dict[str, SectionOverride] = field(default_factory=dict[str, SectionOverride])
    tools: dict[str, ToolOverride] = field(default_factory=dict[str, ToolOverride])

    @staticmethod
    def from_json(text: str | bytes) -> PromptOverrides:
        """Parse overrides from JSON."""
        return parse_json(text, PromptOverrides)

    def to_json(self) -> str:
        return dump_json(self)

    def match(self, descriptor: PromptDescriptor) -> tuple[PromptOverrides, tuple[str, ...]]:
        """The overrides whose hash matches the prompt, and the reasons for the others."""
        if (self.ns, self.prompt_key) != (descriptor.ns, descriptor.key):
            raise PromptValidationError(
                f"overrides for prompt {self.ns}/{self.prompt_key} were applied to {descriptor.ns}/{descriptor.key}"
            )
        stale: list[str] = []
        sections = _matching("section", self.sections, {item.path: item for item in descriptor.sections}, stale)
        tools = _matching("tool", self.tools, {item.name: item for item in descriptor.tools}, stale)
        return PromptOverrides(self.ns, self.prompt_key, sections, tools), tuple(stale)


class OverrideStore:
    """Loads and saves overrides as files `{ns}/{key}.json` of a `Filesystem`."""

    def __init__(self, filesystem: Filesystem) -> None:
        self._filesystem = filesystem

    def load(self, ns: str, key: str) -> PromptOverrides | None:
        """The overrides of a prompt; None if there is no file."""
        path = f"{ns}/{key}.json"
        if not self._filesystem.is_file(path):
            return None
        return PromptOverrides.from_json(self._filesystem.read_bytes(path))

    def save(self, overrides: PromptOverrides) -> None:
        """Write the overrides of a prompt, replacing the file."""
        self._filesystem.write_text(f"{overrides.ns}/{overrides.prompt_key}.json", overrides.to_json() + "\n")


def describe_prompt(ns: str, key: str, sections: Iterable[tuple[str, Section[Any]]]) -> PromptDescriptor:
    """Hash the texts and tools that an override can replace."""
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


def _matching(
    kind: str,
    overrides: Mapping[str, OverrideT],
    originals: Mapping[str, SectionDescriptor] | Mapping[str, ToolDescriptor],
    stale: list[str],
) -> dict[str, OverrideT]:
    matching: dict[str, OverrideT] = {}
    for name, override in overrides.items():
        original = originals.get(name)
        if original is None:
            stale.append(f"{kind} {name!r} does not exist")
        elif not original.accepts_overrides:
            stale.append(f"{kind} {name!r} does not accept overrides")
        elif original.hash != override.expected_hash:
            stale.append(f"{kind} {name!r} has changed since the override was written")
        else:
            matching[name] = override
    return matching
