"""Guarded fetcher of URLs that users and models choose: public addresses only, pinned connections, bounded answers.

- `addresses`: which IP addresses may be connected to
- `resolver`: a name resolved once, in turn for tenants, to addresses that are all allowed
- `fetcher`: one GET: every address and every redirect is checked, everything is bounded
- `decoding`: content encodings, decompressed up to a limit
"""

from __future__ import annotations

from antwort.net.fetch.addresses import AddressPolicy
from antwort.net.fetch.errors import FetchError, FetchRefused
from antwort.net.fetch.fetcher import FetchedPage, Fetcher, FetchLimits, check_url
from antwort.net.fetch.resolver import FairResolver, GuardedResolver, Resolver

__all__ = [
    "AddressPolicy",
    "FairResolver",
    "FetchError",
    "FetchLimits",
    "FetchRefused",
    "FetchedPage",
    "Fetcher",
    "GuardedResolver",
    "Resolver",
    "check_url",
]
