"""Web search: searches with a configured engine, opens pages and finds text in them, for any chat model.

types                what the model sees: functions and their arguments
provider             opens the engine, prepares the tool for a response
prepared             the state of one response: sources, opened pages, actions
call                 one call, from its arguments to its item
sources, citations   numbered sources, and `url_citation` annotations
pages, extraction    opening pages: cache, guarded fetcher, text extraction in a sandbox
engines              search engines behind one port
"""

from __future__ import annotations

from antwort.tools.builtins.websearch.provider import OpenedWebSearch, WebSearchProvider, open_web_search

__all__ = ["OpenedWebSearch", "WebSearchProvider", "open_web_search"]
