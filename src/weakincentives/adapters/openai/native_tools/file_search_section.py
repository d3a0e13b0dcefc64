"""File search: the provider looks through vector stores that were filled beforehand."""

from __future__ import annotations

from dataclasses import dataclass

from weakincentives.errors import PromptValidationError
from weakincentives.prompt import NativeDeclaration, Section, SupportsDataclass

_MOST_RESULTS = 50  # the provider's own limit


@dataclass(frozen=True, slots=True)
class FileSearchParams:
    """Which vector stores to search, and how much to bring back."""

    vector_store_ids: tuple[str, ...] = ()
    max_results: int = 20

    def __post_init__(self) -> None:
        if not 1 <= self.max_results <= _MOST_RESULTS:
            raise PromptValidationError(f"max_results must be 1 to {_MOST_RESULTS}, not {self.max_results}")


class OpenAIFileSearchSection(Section[FileSearchParams]):
    """Lets the model search files. Renders no text; the declaration goes to the provider."""

    def __init__(self, *, default_params: FileSearchParams | None = None) -> None:
        super().__init__(
            title="File search",
            key="openai_file_search",
            default_params=default_params or FileSearchParams(),
            accepts_overrides=False,
        )

    def render(self, params: SupportsDataclass | None, depth: int, number: str) -> str:
        _ = params, depth, number
        return ""

    def native_tools(self, params: SupportsDataclass | None = None) -> tuple[NativeDeclaration, ...]:
        config = params or self.default_params
        return (NativeDeclaration(capability="file_search", name="file_search", provider="openai", config=config),)
