"""`ServerSupport`: which forms of compaction a server has, as its answers show. One per adapter and base URL."""

from __future__ import annotations

from dataclasses import dataclass

from weakincentives.adapters.openai.wire import error_code
from weakincentives.errors import ProviderFault

_MISSING_STATUSES = frozenset({404, 405, 501})
_NOT_IMPLEMENTED = 501
_NO_MODEL = "model_not_found"
_DEAD_ITEM = "invalid_encrypted_content"
_TOO_LONG = "context_length_exceeded"

REPAIRABLE_CODES = frozenset({_DEAD_ITEM, _TOO_LONG})
"""The error codes after which a request is sent again with another window."""


@dataclass
class ServerSupport:
    """What is known about a server; None is not known yet."""

    context_management: bool | None = None
    endpoint: bool | None = None
    counting: bool | None = None
    store_parameter: bool | None = None
    reported: bool = False


def is_missing(fault: ProviderFault) -> bool:
    """Whether the server does not have this endpoint."""
    return fault.status in _MISSING_STATUSES and error_code(fault.payload) != _NO_MODEL


def is_not_implemented(fault: ProviderFault) -> bool:
    """Whether a retry is useless in spite of the status 5xx."""
    return fault.status == _NOT_IMPLEMENTED


def is_dead_item(fault: ProviderFault) -> bool:
    """Whether the server cannot decrypt an item: its key was rotated, or the item belongs to another provider."""
    return error_code(fault.payload) == _DEAD_ITEM


def is_too_long(fault: ProviderFault) -> bool:
    """Whether the input does not fit the context window of the model."""
    return error_code(fault.payload) == _TOO_LONG
