"""Compaction: a long history becomes one encrypted item, with a summary and what must stay verbatim.

opening      opens compaction and reasoning items of a history, and applies them
inline_data  images and files whose content is in a history: budgets of bytes, and texts that replace them
retention    what of a history stays verbatim
summary      the request for a summary, its check, and the extract that replaces a failed one
compactor    the compaction of one response: thresholds, budgets, the sealed item
"""

from __future__ import annotations

__all__: list[str] = []
