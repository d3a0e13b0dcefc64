"""The tools that OpenAI runs, one file each. Nothing here sends a request."""

from __future__ import annotations

from weakincentives.adapters.openai.native_tools.file_search_section import FileSearchParams, OpenAIFileSearchSection

__all__ = ["FileSearchParams", "OpenAIFileSearchSection"]
