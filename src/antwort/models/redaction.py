"""Redaction of upstream error messages: removes secrets, addresses and control characters. Pure.

Servers quote headers, addresses and keys in their errors. The patterns rather remove too much than too little: that
costs a word of an error. They are linear in the length of the text, which is cut before.
"""

from __future__ import annotations

import base64
import ipaddress
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import get_args
from urllib.parse import quote, unquote, urlsplit

from antwort.api.ids import Prefix

MAX_MESSAGE_LENGTH = 500
"""Characters of a redacted message."""

_MAX_INPUT_LENGTH = 4000
_MIN_SUBSTRING_LENGTH = 8
_MIN_HEADER_LENGTH = 6
_MIN_KEY_PART = 12
_MIN_GROUP = 6
_MAX_VALUE_READ = 64
_MAX_ADDRESS_LENGTH = 45
_SECRET = "[redacted]"  # noqa: S105 - stands in place of one
_ADDRESS = "[address]"

# Everything up to the closing quote or the end of the line: the value of a header may contain spaces.
_HEADER_RE = re.compile(
    r"""\b((?:proxy-)?authorization|(?:set-)?cookie)(["']?\s{0,8}[:=]\s{0,8}["']?)[^"'\n]+""", re.IGNORECASE
)
_SCHEME_RE = re.compile(r"\b(Bearer|(?:Basic|Digest|Negotiate)(?=\s+[\w+/]{12}))\s{1,8}[^\s\"',;]+", re.IGNORECASE)
# A name and its value, as in "api key: x", "apiKey=x", "host='x'". A value in quotes may contain spaces.
_NAME_RE = re.compile(
    r"""(?<![\w-])(?P<name>(?:(?:api|access|auth|private|secret)\s)?[\w-]++)"""
    r"""[\\"'`]{0,2}\s{0,8}[:=]{1,2}>?\s{0,8}[\\"'`]{0,2}""",
    re.IGNORECASE,
)
_VALUE_RE = re.compile(r"""(?<=")[^"\n]+|(?<=')[^'\n]+|[^\s"'`,;]+""")
_SECRET_NAME_RE = re.compile(r"key|token|secret|passw|passphrase|passcode|pass$|pwd|credential")
# Names that contain such a word and have other values: "max_tokens: 9", "KeyError: 'x'", "unexpected key: x".
_OTHER_NAME_RE = re.compile(r".*tokens|.*token[-_](?:ids?|count|limit|budget)|.*tokeni[sz].*|keys?|key(?:error|word).*")
_HOST_NAME_RE = re.compile(r"(?:.*[-_])?host(?:[-_]?name)?")
# How the validation error of a field continues: no value.
_NO_VALUE_RE = re.compile(
    r"(?:must|should|field|input|extra|value|string|cannot|can't|is|not|required|missing|invalid|expected|unknown|none"
    r"|null|true|false)\b[^\w]*",
    re.IGNORECASE,
)
# "api key abc123 is invalid", "token 'a1b2c3d4' has expired".
_NAMED_RE = re.compile(
    r"""\b((?:api|access|auth|private|secret)[-_ ]?key|(?:access |auth |bearer )?token|secret|password)"""
    r"""((?:\s(?:provided|given|value))?:?\s{1,8}["'`(<]?)(?=[a-z_.*-]{0,64}\d)(?=[\d_.*-]{0,64}[a-z])[\w.*-]{6,}""",
    re.IGNORECASE,
)
# Keys of well-known services, also shortened ones as in "sk-pr****7890".
_KEY_RE = re.compile(
    r"\b(?:[spr]k-[\w*.…-]{4,}"
    r"|(?:sk|gsk|hf|xai|r8|pplx|nvapi|sess|org|proj|gh[opsu]|github_pat|glpat|xox[abeprs])[-_](?=[A-Za-z_.…-]{0,64}[\d*])[\w*.…-]{4,}"
    r"|AIza[\w*-]{8,}|A[KS]IA[A-Z0-9*]{8,}|eyJ[\w-]{8,}[\w.*-]*)"
)
_OPAQUE_RE = re.compile(r"(?<![\w+/-])[\w+/-]{32,}+={0,2}", re.ASCII)
_UNDIVIDED_RE = re.compile(r"[A-Za-z+/]*\d[A-Za-z0-9+/]*={0,2}")
_UUID_RE = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_ITEM_ID_RE = re.compile(rf"(?:{'|'.join(map(re.escape, get_args(Prefix)))}|chatcmpl-)[0-9A-Za-z-]+")
_MIXED_RE = re.compile(r"[A-Za-z]\d|\d[A-Za-z]")
# Also percent-encoded, as in the query of another URL.
_URL_RE = re.compile(
    r"(?:\b|(?<=%[0-9a-f][0-9a-f]))[a-z][a-z0-9+.-]{0,31}(?::|%(?:25){0,2}3a)(?:/|%(?:25){0,2}2f){2}[^\s\"'<>)\]]+",
    re.IGNORECASE,
)
_WORD_RE = re.compile(r"[\w.-]+(?::\d{1,5}\b)?")
_IP_WORD_RE = re.compile(r"\[?[0-9A-Fa-f.:]{2,}\]?(?::\d{1,5}\b)?")
_TOP_LEVEL_DOMAIN_RE = re.compile(
    "ai|app|arpa|cloud|cluster|cn|co|com|corp|de|dev|edu|eu|example|fr|home|internal|intranet|invalid|io|lan|local"
    "|localdomain|net|org|private|ru|svc|test|uk|us|xyz"
)


class Redactor:
    """Redacts the messages of one upstream: knows its address and the secrets that are sent to it."""

    def __init__(self, url: str, *, api_key: str | None = None, headers: Mapping[str, str] | None = None) -> None:
        secrets = [api_key or "", *_header_secrets(headers or {}), *_url_secrets(url)]
        self._secrets_re = _any_of(form for secret in secrets for form in _forms(secret))
        self._host_re = _host_pattern(url)

    def redact(self, message: str) -> str:
        """The message on one line, without secrets and addresses, with at most `MAX_MESSAGE_LENGTH` characters."""
        text = _printable(_cut(message))
        if self._secrets_re is not None:
            text = self._secrets_re.sub(_SECRET, text)
        text = _HEADER_RE.sub(rf"\1\2{_SECRET}", text)
        text = _SCHEME_RE.sub(rf"\1 {_SECRET}", text)
        text = _URL_RE.sub(_ADDRESS, text)
        text = _redact_pairs(text)
        text = _NAMED_RE.sub(rf"\1\2{_SECRET}", text)
        text = _KEY_RE.sub(_SECRET, text)
        if self._host_re is not None:
            text = self._host_re.sub(_ADDRESS, text)
        text = _IP_WORD_RE.sub(_redact_ip_address, text)
        text = _WORD_RE.sub(_redact_host_name, text)
        text = " ".join(_OPAQUE_RE.sub(_redact_opaque, text).split())
        return text if len(text) <= MAX_MESSAGE_LENGTH else f"{text[: MAX_MESSAGE_LENGTH - 1]}…"


def _cut(message: str) -> str:
    """The beginning of a long message, up to a space: half a secret would not be recognised."""
    if len(message) <= _MAX_INPUT_LENGTH:
        return message
    return message[:_MAX_INPUT_LENGTH].rpartition(" ")[0]


def _printable(text: str) -> str:
    """Without control, format and other unprintable characters; line breaks are kept."""
    return "".join(
        char if char == "\n" or unicodedata.category(char)[0] not in "CZ" else " " if char.isspace() else ""
        for char in text
    )


def _redact_pairs(text: str) -> str:
    """A value that is kept may begin with another pair, as in "failed: key=x": the search continues at the value."""
    parts: list[str] = []
    end = 0
    for name in _NAME_RE.finditer(text):
        if name.start() < end:
            continue
        hidden = _in_place_of(name["name"].lower(), text[name.end() : name.end() + _MAX_VALUE_READ])
        value = _VALUE_RE.match(text, name.end()) if hidden else None
        if value is not None:
            parts += text[end : name.end()], hidden
            end = name.end() + len(value[0].rstrip(")}:"))
    return "".join([*parts, text[end:]])


def _in_place_of(name: str, text: str) -> str:
    """What stands in place of the value at the beginning of the text; nothing where the value is kept."""
    value = _VALUE_RE.match(text)
    if value is None or _NO_VALUE_RE.fullmatch(value[0]):
        return ""
    if _HOST_NAME_RE.fullmatch(name) or (name == "port" and text[0].isdecimal()):
        return _ADDRESS
    is_secret = _SECRET_NAME_RE.search(name) and (_is_mixed(value[0]) or not _OTHER_NAME_RE.fullmatch(name))
    return _SECRET if is_secret else ""


def _is_mixed(value: str) -> bool:
    """Whether a value has letters and digits side by side, and is too long for a version or a unit."""
    return len(value) >= _MIN_SUBSTRING_LENGTH and _MIXED_RE.search(value) is not None


def _redact_opaque(found: re.Match[str]) -> str:
    """Whether a long word is a key or a name such as `Qwen3-Coder-480B-A35B-Instruct-FP8` is decided by its parts."""
    word = found[0]
    if _ITEM_ID_RE.fullmatch(word):
        return word
    if _UNDIVIDED_RE.fullmatch(word) or _UUID_RE.search(word):
        return _SECRET
    parts = re.split(r"[-_+/=]", word)
    mixed = [part for part in parts if _MIXED_RE.search(part)]
    is_key = any(len(part) >= _MIN_KEY_PART and len(_MIXED_RE.findall(part)) > 1 for part in mixed)
    is_grouped = sum(len(part) for part in mixed if len(part) >= _MIN_GROUP) * 2 > len(word)
    return _SECRET if is_key or is_grouped else word


def _redact_ip_address(found: re.Match[str]) -> str:
    word = found[0].rstrip(".:")
    if len(word) > _MAX_ADDRESS_LENGTH + 8 or not {".", ":"} & set(word):
        return found[0]
    host, _, port = word.rpartition(":")
    for candidate in (word, host if port.isdecimal() else ""):
        try:
            ipaddress.ip_address(candidate.strip("[]"))
        except ValueError:
            continue
        return _ADDRESS + found[0][len(word) :]
    return found[0]


def _redact_host_name(found: re.Match[str]) -> str:
    name = found[0].rstrip(".-")
    host, _, port = name.partition(":")
    *labels, last = host.lower().split(".")
    is_domain = _TOP_LEVEL_DOMAIN_RE.fullmatch(last) or (port and not last.isdecimal())
    is_host = last == "localhost" or (labels and is_domain)
    return _ADDRESS + found[0][len(name) :] if is_host else found[0]


# ── known secrets ────────────────────────────────────────────────────────────────────────────────────────────────────


def _header_secrets(headers: Mapping[str, str]) -> Iterable[str]:
    """The values of the configured headers, also without the scheme of an `Authorization`; no words like `close`."""
    for value in headers.values():
        if len(value) >= _MIN_HEADER_LENGTH:
            yield value
            yield value.rpartition(" ")[2]


def _url_secrets(url: str) -> Iterable[str]:
    """User name and password in a URL, also as `Basic` authentication sends them; and its query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return
    if parts.password:
        user, password = unquote(parts.username or ""), unquote(parts.password)
        yield password
        yield base64.b64encode(f"{user}:{password}".encode()).decode()
    for pair in parts.query.split("&"):
        yield pair.partition("=")[2]


def _host_pattern(url: str) -> re.Pattern[str] | None:
    """The host of a URL, with or without a port. One that is a plain word, such as `vllm`, only with a port."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return None
    port = r":\d{1,5}" if host.isalpha() else r"(?::\d{1,5})?"
    return re.compile(rf"(?<!\w){re.escape(host)}{port}(?!\w)", re.IGNORECASE) if host else None


def _forms(secret: str) -> Iterable[str]:
    """A secret as it is, and as it stands in a URL and in JSON."""
    yield from {secret, quote(secret, safe=""), secret.replace("\\", "\\\\").replace('"', '\\"')}


def _any_of(words: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern for any of the words. Short words must stand alone: they are also parts of other words."""
    patterns = [
        re.escape(word) if len(word) >= _MIN_SUBSTRING_LENGTH else rf"(?<!\w){re.escape(word)}(?!\w)"
        for word in sorted(set(words), key=len, reverse=True)
        if word
    ]
    return re.compile("|".join(patterns), re.IGNORECASE) if patterns else None
