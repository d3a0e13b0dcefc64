"""File search: the provider looks through vector stores that were filled beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from weakincentives.adapters.openai.native_tools.capability import (
    Capability,
    ConfigError,
    NativeSection,
    Ran,
    Reading,
    Scene,
    failure,
    without_none,
)
from weakincentives.adapters.openai.wire import Wire, objects_in, text_in, texts_in
from weakincentives.prompt import ToolResult

_MOST_RESULTS = 50  # the provider's own limit


@dataclass(frozen=True, slots=True)
class FileSearchConfig:
    """Which vector stores to search, and how much to bring back. Without a store there is nothing to search.

    `filters` and `ranking_options` are the provider's own forms.
    """

    vector_store_ids: tuple[str, ...] = ()
    max_results: int = 20
    filters: Mapping[str, Any] | None = field(default=None, hash=False)
    ranking_options: Mapping[str, Any] | None = field(default=None, hash=False)


@dataclass(frozen=True, slots=True)
class FileSearchCall:
    """What the model looked for."""

    queries: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FileHit:
    """One piece of a file that was found."""

    file_id: str = ""
    filename: str = ""
    text: str = ""
    score: float | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)


@dataclass(frozen=True, slots=True)
class FileSearchResult:
    """What was found."""

    results: tuple[FileHit, ...] = ()

    def render(self) -> str:
        """Name and text of each."""
        return "\n\n".join(f"{hit.filename}: {hit.text}" for hit in self.results) or "(nothing found)"


class FileSearch(Capability):
    """`file_search` on the wire."""

    name = "file_search"
    items = frozenset({"file_search_call"})
    config_type = FileSearchConfig
    fields = ("vector_store_ids", "max_num_results", "filters", "ranking_options")
    includes = ("file_search_call.results",)
    example = Ran(FileSearchCall(("tea",)), ToolResult("", FileSearchResult((FileHit("file_1", "a.txt", "tea", 0.5),))))

    def write(self, config: FileSearchConfig) -> Wire | None:
        stores = config.vector_store_ids
        if not all(stores):
            raise ConfigError(f"vector_store_ids must be ids of vector stores, not {stores!r}")
        if not 1 <= config.max_results <= _MOST_RESULTS:
            raise ConfigError(f"max_results must be 1 to {_MOST_RESULTS}, not {config.max_results!r}")
        if not stores:
            return None
        return {
            "vector_store_ids": list(stores),
            "max_num_results": config.max_results,
            **without_none(filters=config.filters, ranking_options=config.ranking_options),
        }

    def read(self, item: Wire, scene: Scene, config: object) -> Reading:
        _ = scene, config
        params = FileSearchCall(texts_in(item, "queries"))
        value = FileSearchResult(tuple(map(_hit, objects_in(item.get("results"), "results"))))
        return Ran(params, failure(item) or ToolResult.ok(value))


def _hit(raw: Wire) -> FileHit:
    score = raw.get("score")
    return FileHit(
        file_id=text_in(raw, "file_id"),
        filename=text_in(raw, "filename"),
        text=text_in(raw, "text"),
        score=score if isinstance(score, (int, float)) else None,
        attributes=raw.get("attributes") or {},
    )


CAPABILITY = FileSearch()


class OpenAIFileSearchSection(NativeSection[FileSearchConfig]):
    """Lets the model search files. Renders no text; the declaration goes to the provider."""

    capability = CAPABILITY

    def __init__(self, *, default_params: FileSearchConfig | None = None) -> None:
        super().__init__(
            title="File search",
            key="openai_file_search",
            default_params=default_params or FileSearchConfig(),
            accepts_overrides=False,
        )
