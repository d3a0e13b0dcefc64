"""Transcripts: the events of a session as JSON Lines (JSONL), written and read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

from weakincentives.budget import TokenUsage
from weakincentives.errors import ParseError, SerdeError
from weakincentives.runtime.events import ModelResponded, PromptExecuted, PromptRendered, ToolInvoked
from weakincentives.serde import dump, dump_json, parse_json

EntryKind: TypeAlias = Literal["prompt", "model", "tool", "answer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptEntry:
    """One line. `params` and `value` are JSON-like data converted from dataclasses."""

    sequence: int
    kind: EntryKind
    created_at: datetime
    prompt_name: str
    adapter: str
    text: str = ""
    name: str | None = None
    call_id: str | None = None
    params: Any = None
    value: Any = None
    success: bool | None = None
    origin: str | None = None
    provider: str | None = None
    capability: str | None = None
    tools: tuple[str, ...] = ()
    usage: TokenUsage = field(default_factory=TokenUsage)


@dataclass(frozen=True, slots=True)
class Transcript:
    """Entries in order. Built from a session's events on demand."""

    entries: tuple[TranscriptEntry, ...] = ()

    @staticmethod
    def of(events: Iterable[object]) -> Transcript:
        """Build a transcript from events."""
        return Transcript(tuple(_entry(index, event) for index, event in enumerate(events)))

    def to_jsonl(self) -> str:
        """One JSON object per line."""
        return "".join(f"{_to_json_line(entry)}\n" for entry in self.entries)

    @staticmethod
    def from_jsonl(text: str) -> Transcript:
        """Parse the output of `to_jsonl`. An incomplete last line, as a crash leaves it, is ignored."""
        lines = text.split("\n")
        entries: list[TranscriptEntry] = []
        for index, line in enumerate(lines):
            if not line.strip():
                continue
            try:
                entries.append(parse_json(line, TranscriptEntry))
            except ParseError as error:
                if index == len(lines) - 1:
                    break
                raise ParseError(f"line {index + 1} is not a transcript entry: {error}") from error
        return Transcript(tuple(entries))

    def write(self, path: Path | str) -> None:
        """Write as JSONL."""
        Path(path).write_text(self.to_jsonl(), encoding="utf-8")

    @staticmethod
    def read(path: Path | str) -> Transcript:
        """Read a JSONL file."""
        return Transcript.from_jsonl(Path(path).read_text(encoding="utf-8", errors="replace"))

    def __iter__(self) -> Iterator[TranscriptEntry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def _entry(sequence: int, event: object) -> TranscriptEntry:
    if not isinstance(event, PromptRendered | ModelResponded | ToolInvoked | PromptExecuted):
        raise TypeError(f"a transcript has no entry for {type(event).__name__}")
    shared: dict[str, Any] = {name: getattr(event, name) for name in ("created_at", "prompt_name", "adapter")}
    shared["sequence"] = sequence
    match event:
        case PromptRendered():
            tools = (*event.tool_names, *event.native_tool_names)
            return TranscriptEntry(**shared, kind="prompt", text=event.text, tools=tools)
        case ModelResponded():
            text, tools = event.text or "", event.tool_calls
            return TranscriptEntry(**shared, kind="model", text=text, tools=tools, usage=event.usage)
        case ToolInvoked():
            return TranscriptEntry(
                **shared,
                kind="tool",
                text=event.rendered_output or event.result.render(),
                name=event.name,
                call_id=event.call_id,
                params=_to_plain_data(event.params),
                value=_to_plain_data(event.result.value),
                success=event.result.success,
                origin=event.origin,
                provider=event.provider,
                capability=event.capability,
            )
        case PromptExecuted():
            text = getattr(event.result, "text", None) or ""
            value = _to_plain_data(getattr(event.result, "output", None))
            return TranscriptEntry(**shared, kind="answer", text=text, value=value, usage=event.usage)


def _to_plain_data(value: object) -> Any:  # noqa: ANN401 - JSON has no narrower type
    try:
        return dump(value, fallback=repr)
    except SerdeError:  # a cyclic value, or keys that are not strings: keep its repr
        return repr(value)


def _to_json_line(entry: TranscriptEntry) -> str:
    try:
        return dump_json(entry)
    except SerdeError:  # an unpaired surrogate, which models and programs do print, cannot be encoded
        return json.dumps(dump(entry), ensure_ascii=False).encode(errors="replace").decode()
