"""File search (`file_search`): the provider searches vector stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from weakincentives.adapters.openai.native_tools.capability import (
    Capability,
    NativeSection,
    ParsedCall,
    ProviderRan,
    ResponseContext,
    ToolConfigError,
    failed_result,
    without_none,
)
from weakincentives.adapters.openai.wire import Wire, as_objects, get_str, get_strs
from weakincentives.prompt import ToolResult

_MAX_RESULTS = 50  # limit of the provider


@dataclass(frozen=True, slots=True)
class FileSearchConfig:
    """The vector stores to search, and the number of results. Without a store the tool is left out of the request.

    `filters` and `ranking_options` are in wire form.
    """

    vector_store_ids: tuple[str, ...] = ()
    max_results: int = 20
    filters: Mapping[str, Any] | None = field(default=None, hash=False)
    ranking_options: Mapping[str, Any] | None = field(default=None, hash=False)


@dataclass(frozen=True, slots=True)
class FileSearchCall:
    """The queries of the model."""

    queries: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FileHit:
    """A chunk of a file that matches a query."""

    file_id: str = ""
    filename: str = ""
    text: str = ""
    score: float | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)


@dataclass(frozen=True, slots=True)
class FileSearchResult:
    """The matching chunks."""

    results: tuple[FileHit, ...] = ()

    def render(self) -> str:
        """File name and text of each chunk."""
        return "\n\n".join(f"{hit.filename}: {hit.text}" for hit in self.results) or "(nothing found)"


class FileSearch(Capability):
    """`file_search` on the wire."""

    name = "file_search"
    items = frozenset({"file_search_call"})
    config_type = FileSearchConfig
    fields = ("vector_store_ids", "max_num_results", "filters", "ranking_options")
    includes = ("file_search_call.results",)
    missing = "vector stores, such as tool.with_config(FileSearchConfig(vector_store_ids=(…,)))"
    example = ProviderRan(FileSearchCall(("tea",)), ToolResult("", FileSearchResult((FileHit("f1", "a", "tea", 0.5),))))

    def declaration_fields(self, config: FileSearchConfig) -> Wire | None:
        stores = config.vector_store_ids
        if not all(stores):
            raise ToolConfigError(f"vector_store_ids must be ids of vector stores, not {stores!r}")
        if not 1 <= config.max_results <= _MAX_RESULTS:
            raise ToolConfigError(f"max_results must be 1 to {_MAX_RESULTS}, not {config.max_results!r}")
        if not stores:
            return None
        return {
            "vector_store_ids": list(stores),
            "max_num_results": config.max_results,
            **without_none(filters=config.filters, ranking_options=config.ranking_options),
        }

    def parse_call(self, item: Wire, response: ResponseContext, config: object) -> ParsedCall:
        _ = response, config
        params = FileSearchCall(get_strs(item, "queries"))
        value = FileSearchResult(tuple(map(_hit, as_objects(item.get("results"), "results"))))
        return ProviderRan(params, failed_result(item) or ToolResult.ok(value))


def _hit(raw: Wire) -> FileHit:
    score = raw.get("score")
    return FileHit(
        file_id=get_str(raw, "file_id"),
        filename=get_str(raw, "filename"),
        text=get_str(raw, "text"),
        score=score if isinstance(score, (int, float)) else None,
        attributes=raw.get("attributes") or {},
    )


CAPABILITY = FileSearch()


class OpenAIFileSearchSection(NativeSection[FileSearchConfig]):
    """Lets the model search files. Renders no text; the declaration goes to the provider."""

    capability = CAPABILITY
