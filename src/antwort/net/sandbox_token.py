"""Header for the token of a sandbox server behind a router that uses `Authorization` itself and does not forward it."""

from __future__ import annotations

from typing import Final

ROUTED_TOKEN_HEADER: Final = "x-antwort-authorization"  # noqa: S105 - the name of a header
"""Accepted in place of `Authorization`, with the same value: `Bearer` and the token."""
