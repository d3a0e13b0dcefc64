"""OpenAI's Responses API: sections that declare the tools it runs. All wire literals stay in this room."""

from __future__ import annotations

from weakincentives.adapters.openai.native_tools import FileSearchParams, OpenAIFileSearchSection

__all__ = ["FileSearchParams", "OpenAIFileSearchSection"]
