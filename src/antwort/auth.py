"""Who asks: API keys, the tenants behind them, and how much each may ask for.

A key is `sk-antwort-<id>-<secret>`. The secret has 256 random bits and only its SHA-256 is
kept. That is enough here: nobody finds 256 bits by trying, so a slow hash such as scrypt,
made for what people can remember, would protect nothing more, and would cost every request
(and whoever floods us with wrong keys, nothing) tens of milliseconds.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import math
import os
import re
import secrets
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field

from antwort.api.errors import ApiError

_KEY = re.compile(r"sk-antwort-(?P<id>[0-9a-f]{16})-(?P<secret>[A-Za-z0-9_-]{43})")
_NOBODY = hashlib.sha256(b"nobody has this key").hexdigest()

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._@-]{1,64}$")]
Positive = Annotated[int, Meta(ge=1)]


class KeyFileError(Exception):
    """The file of keys cannot be used. Says what to do."""


class Caller(Struct, frozen=True):
    """Who asks. `key_id` is public: it is in logs and lists."""

    tenant: str
    key_id: str
    requests_per_minute: int | None = None
    concurrent_responses: int | None = None


LOCAL = Caller("local", "none")
"""Everybody, where there are no keys: only this machine gets in then."""


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Key(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is kept of a key: never its secret."""

    id: str
    name: str
    tenant: Name
    sha256: str
    created_at: int
    revoked_at: int | None = None
    requests_per_minute: Positive | None = None
    concurrent_responses: Positive | None = None


class _KeyFile(Struct, forbid_unknown_fields=True):
    keys: list[Key] = field(default_factory=list[Key])
    version: int = 1


class KeyFile:
    """The file that `antwort keys` writes. Changes replace it whole, so that a reader never sees half of one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[Key]:
        """All keys, revoked ones too. A file that others may read or write is refused."""
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_mode & 0o077:
                    raise KeyFileError(f"{self.path} may be read or written by others: run `chmod 600` on it.")
                return msgspec.json.decode(file.read(), type=_KeyFile).keys
        except OSError as error:
            raise KeyFileError(f"The keys cannot be read: {error}. `antwort keys create` makes the file.") from error
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise KeyFileError(f"{self.path} is not a file of keys: {error}") from error

    def create(
        self,
        name: str,
        tenant: str,
        *,
        requests_per_minute: int | None = None,
        concurrent_responses: int | None = None,
    ) -> tuple[Key, str]:
        """Add a key; the second value is shown to its owner once and kept nowhere."""
        identifier, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
        key = Key(
            id=identifier,
            name=name,
            tenant=tenant,
            sha256=_digest(secret),
            created_at=int(time.time()),
            requests_per_minute=requests_per_minute,
            concurrent_responses=concurrent_responses,
        )
        try:
            checked = msgspec.convert(msgspec.to_builtins(key), Key)
        except msgspec.ValidationError as error:
            raise KeyFileError(f"This cannot be a key: {error}") from error
        with self._locked():
            self._write([*(self.read() if self.path.exists() else []), checked])
        return checked, f"sk-antwort-{identifier}-{secret}"

    def revoke(self, key_id: str) -> bool:
        """Let a key open nothing any more; False where there is none."""
        with self._locked():
            keys = self.read()
            revoked = [_revoked(key) if key.id == key_id else key for key in keys]
            if keys == revoked:
                return any(key.id == key_id for key in keys)
            self._write(revoked)
            return True

    def _write(self, keys: list[Key]) -> None:
        content = msgspec.json.format(msgspec.json.encode(_KeyFile(keys)), indent=2) + b"\n"
        temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Two who change the file at once take turns."""
        import fcntl  # noqa: PLC0415 - only for changes, and not on every platform

        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self.path.with_name(f".{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _revoked(key: Key) -> Key:
    return key if key.revoked_at is not None else msgspec.structs.replace(key, revoked_at=int(time.time()))


# ── the door ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Authenticator:
    """Lets callers in. Without keys everybody is of this machine, and whoever starts the server sees to it.

    `defaults` are the limits of keys that have none of their own, and of that local caller.
    """

    def __init__(self, keys: list[Key] | None, *, defaults: Caller = LOCAL) -> None:
        self._defaults = defaults
        self._keys: dict[str, Key] | None = None
        if keys is not None:
            self.replace(keys)

    @property
    def requires_key(self) -> bool:
        """Whether a key is needed."""
        return self._keys is not None

    @property
    def count(self) -> int:
        """How many keys open it."""
        return len(self._keys or ())

    def replace(self, keys: list[Key]) -> None:
        """From now on these."""
        self._keys = {key.id: key for key in keys if key.revoked_at is None}

    def authenticate(self, authorization: str | None) -> Caller:
        """The caller behind an `Authorization` header; `ApiError` 401 for one without a good key."""
        if self._keys is None:
            return self._defaults
        scheme, _, given = (authorization or "").partition(" ")
        found = _KEY.fullmatch(given.strip()) if scheme.lower() == "bearer" else None
        key = self._keys.get(found["id"]) if found else None
        # The id is public and may be looked up; the secret is compared in constant time, also where there is no key.
        right = hmac.compare_digest(_digest(found["secret"] if found else ""), key.sha256 if key else _NOBODY)
        if key is None or not right:
            raise _unauthorized(authorization)
        return self._caller(key)

    def caller_for_key(self, key_id: str) -> Caller | None:
        """Who has this key; None where it opens nothing any more."""
        if self._keys is None:
            return self._defaults if key_id == self._defaults.key_id else None
        key = self._keys.get(key_id)
        return None if key is None else self._caller(key)

    def _caller(self, key: Key) -> Caller:
        return Caller(
            key.tenant,
            key.id,
            key.requests_per_minute or self._defaults.requests_per_minute,
            key.concurrent_responses or self._defaults.concurrent_responses,
        )


def _unauthorized(authorization: str | None) -> ApiError:
    message = "Incorrect API key provided." if authorization else "You didn't provide an API key: send it as a Bearer."
    return ApiError(401, message, code="invalid_api_key")


def is_loopback(host: str) -> bool:
    """Whether an address is of this machine only. Names are not looked up: what they mean may change."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


# ── limits ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Allowance(Struct, frozen=True):
    """What is left to a caller: for the `x-ratelimit-*` headers."""

    limit: int
    remaining: int
    reset: float


class _Use(Struct):
    tokens: float
    at: float
    running: int = 0


class RateLimiter:
    """How much each key uses: requests in a bucket that refills evenly, responses that run at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._uses: dict[str, _Use] = {}

    def take(self, caller: Caller) -> Allowance | None:
        """One request; `ApiError` 429 where there is none left. None where there is no limit."""
        limit = caller.requests_per_minute
        if limit is None:
            return None
        use, now = self._use(caller), self._clock()
        use.tokens = min(float(limit), use.tokens + (now - use.at) * limit / 60)
        use.at = now
        if use.tokens < 1:
            wait = (1 - use.tokens) * 60 / limit
            raise _too_many(f"Rate limit reached: {limit} requests per minute.", math.ceil(wait))
        use.tokens -= 1
        return Allowance(limit, int(use.tokens), (limit - use.tokens) * 60 / limit)

    def begin(self, caller: Caller) -> Callable[[], None]:
        """One more response at once; what is returned is to be called, once or more, when it is over."""
        limit = caller.concurrent_responses
        if limit is None:
            return lambda: None
        if self._use(caller).running >= limit:
            raise _too_many(f"Too many responses at once: {limit} may run at a time.", 1)
        return self.resume(caller)

    def resume(self, caller: Caller) -> Callable[[], None]:
        """The same for one that was let in before: it counts, also where it is one too many."""
        use = self._use(caller)
        use.running += 1
        left = [use]

        def end() -> None:
            while left:
                left.pop().running -= 1

        return end

    def _use(self, caller: Caller) -> _Use:
        return self._uses.setdefault(caller.key_id, _Use(float(caller.requests_per_minute or 0), self._clock()))


def _too_many(message: str, wait: int) -> ApiError:
    return ApiError(429, message, kind="rate_limit_error", code="rate_limit_exceeded", retry_after=wait)
