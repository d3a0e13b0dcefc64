"""Domains and URLs of web pages: the `allowed_domains` filter, and the form in which URLs are compared. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from urllib.parse import quote, urlsplit, urlunsplit

from antwort.api.errors import invalid

_LABEL_RE = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_MAX_DOMAIN = 253
_DEFAULT_PORTS = {"http": 80, "https": 443}
_SAFE = "/%:@!$&'()*+,;=~|"  # what stays as it is, with what is encoded already


class AllowedDomains:
    """The domains of `filters.allowed_domains`; without any, every host is allowed."""

    def __init__(self, domains: Sequence[str] = ()) -> None:
        self.domains = tuple(domains)

    def allows(self, host: str) -> bool:
        """Whether a host is one of the domains, or a subdomain of one."""
        name = host.lower().rstrip(".")
        return not self.domains or any(name == domain or name.endswith(f".{domain}") for domain in self.domains)


def allowed_domains(given: Sequence[str], param: str) -> AllowedDomains:
    """The filter of a request; `ApiError` 400 that names an entry that is not a domain."""
    domains: list[str] = []
    for at, entry in enumerate(given):
        domain = _ascii_domain(entry)
        if domain is None:
            raise invalid(
                f"Invalid domain: {entry[:100]!r}. Give a domain such as 'example.com', without scheme, port and path.",
                param=f"{param}[{at}]",
            )
        domains.append(domain)
    return AllowedDomains(list(dict.fromkeys(domains)))


def _ascii_domain(entry: str) -> str | None:
    """A domain in lower case and in ASCII; None for anything else, such as a URL, a pattern or an IP address."""
    try:
        name = entry.rstrip(".").lower().encode("idna").decode("ascii")
    except UnicodeError:
        return None
    labels = name.split(".")
    is_domain = len(name) <= _MAX_DOMAIN and len(labels) > 1 and all(map(_LABEL_RE.fullmatch, labels))
    return name if is_domain and not _is_address(name) else None


def _is_address(name: str) -> bool:
    if name.rpartition(".")[2].isdecimal():
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def host_of(url: str) -> str:
    """The host of a URL in lower case; empty if it is no URL of a web page."""
    try:
        parts = urlsplit(url)
        return (parts.hostname or "").rstrip(".") if parts.scheme in _DEFAULT_PORTS else ""
    except ValueError:
        return ""


def comparable_url(url: str) -> str:
    """A URL in the form in which it is stored and compared: in ASCII, without fragment and default port."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
        host = (parts.hostname or "").rstrip(".")
        host = f"[{host}]" if ":" in host else host if host.isascii() else host.encode("idna").decode("ascii")
    except ValueError:  # also of an encoding
        return url
    netloc = host if port in (None, _DEFAULT_PORTS.get(parts.scheme)) else f"{host}:{port}"
    path, query = quote(parts.path or "/", safe=_SAFE), quote(parts.query, safe=f"{_SAFE}?[]")
    return urlunsplit((parts.scheme, netloc, path, query, ""))
