"""Errors of the guarded fetcher.

FetchError          the page could not be fetched; the message may be shown to a model
└── FetchRefused    this server does not fetch it: its address, its type, its size
"""

from __future__ import annotations


class FetchError(Exception):
    """The page could not be fetched. The message says why, without any address that the name resolved to."""


class FetchRefused(FetchError):
    """The page may not be fetched."""
