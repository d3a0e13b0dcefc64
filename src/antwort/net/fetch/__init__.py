"""Guarded fetcher of URLs that users and models choose: public addresses only, pinned connections, bounded answers.

- `addresses`: which IP addresses may be connected to
- `fetcher`: one GET: every address and every redirect is checked, everything is bounded
- `decoding`: content encodings, decompressed up to a limit
"""

from __future__ import annotations

from antwort.net.fetch.addresses import AddressPolicy
from antwort.net.fetch.fetcher import FetchedPage, Fetcher, FetchError, FetchLimits, FetchRefused, Resolver

__all__ = ["AddressPolicy", "FetchError", "FetchLimits", "FetchRefused", "FetchedPage", "Fetcher", "Resolver"]
