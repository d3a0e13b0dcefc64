"""Rules for the values of requests that their types do not express.

ids      item ids, call ids, ids of responses and conversations
items    fields of input items that the engine does not read
schemas  JSON schemas of functions and of the output text
"""

from __future__ import annotations

__all__: list[str] = []
