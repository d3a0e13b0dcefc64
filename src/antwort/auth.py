"""Authentication with API keys (bearer tokens), tenants, rate limits and concurrency limits.

A key is `sk-antwort-<id>-<secret>`. The secret has 256 random bits and only its SHA-256 is stored. A slow hash such as
scrypt protects passwords that can be guessed; 256 random bits cannot be, so it would add no protection, and would cost
tens of milliseconds for every request, valid or not.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta, Struct, field

from antwort.api.errors import ApiError
from antwort.private_file import PrivateFile, PrivateFileError

_KEY = re.compile(r"sk-antwort-(?P<id>[0-9a-f]{16})-(?P<secret>[A-Za-z0-9_-]{43})")
_UNMATCHABLE_DIGEST = hashlib.sha256(b"no key has this secret").hexdigest()

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._@-]{1,64}$")]
Positive = Annotated[int, Meta(ge=1)]


class KeyFileError(PrivateFileError):
    """The key file cannot be used; the message says what to do."""


class Caller(Struct, frozen=True):
    """The authenticated caller and its limits. `key_id` is public: it appears in logs and lists."""

    tenant: str
    key_id: str
    requests_per_minute: int | None = None
    concurrent_responses: int | None = None


LOCAL = Caller("local", "none")
"""The caller of every request where no keys are configured; only loopback clients are accepted then."""


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Key(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the key file stores of an API key: never its secret."""

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
    """The file that `antwort keys` writes. Changes replace it atomically, so that readers never see a partial file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = PrivateFile(path)

    def exists(self) -> bool:
        """Whether there is a file, readable or not. A directory that cannot be searched is an error, not a no."""
        try:
            self.path.lstat()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise KeyFileError(f"Cannot tell whether there is a key file: {error}") from error
        return True

    def read(self) -> list[Key]:
        """All keys, including revoked ones. A file that other users may read or write is rejected."""
        try:
            return msgspec.json.decode(self._file.read(), type=_KeyFile).keys
        except PrivateFileError as error:
            raise KeyFileError(str(error)) from error
        except OSError as error:
            raise KeyFileError(f"The key file cannot be read: {error}. `antwort keys create` creates it.") from error
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise KeyFileError(f"{self.path} is not a key file: {error}") from error

    def create(
        self, name: str, tenant: str, *, requests_per_minute: int | None = None, concurrent_responses: int | None = None
    ) -> tuple[Key, str]:
        """Add a key. The second value is the bearer token, which is shown once and not stored."""
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
            raise KeyFileError(f"Invalid key: {error}") from error
        with self._file.locked():
            self._write([*(self.read() if self.path.exists() else []), checked])
        return checked, f"sk-antwort-{identifier}-{secret}"

    def revoke(self, key_id: str) -> bool:
        """Revoke a key; False if there is none with this id."""
        with self._file.locked():
            keys = self.read()
            revoked = [_revoked(key) if key.id == key_id else key for key in keys]
            if keys == revoked:
                return any(key.id == key_id for key in keys)
            self._write(revoked)
            return True

    def _write(self, keys: list[Key]) -> None:
        self._file.write(msgspec.json.format(msgspec.json.encode(_KeyFile(keys)), indent=2) + b"\n")


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _revoked(key: Key) -> Key:
    return key if key.revoked_at is not None else msgspec.structs.replace(key, revoked_at=int(time.time()))


# ── authentication ────────────────────────────────────────────────────────────────────────────────────────────────────


class Authenticator:
    """Authenticates requests by their API key. Without keys every caller is `defaults`.

    `defaults` has the limits of keys without limits of their own. The caller of this class has to make sure that a
    server without keys accepts loopback clients only.
    """

    def __init__(self, keys: list[Key] | None, *, defaults: Caller = LOCAL) -> None:
        self._defaults = defaults
        self._keys: dict[str, Key] | None = None
        if keys is not None:
            self.replace(keys)

    @property
    def requires_key(self) -> bool:
        return self._keys is not None

    @property
    def count(self) -> int:
        """Number of valid keys."""
        return len(self._keys or ())

    def replace(self, keys: list[Key]) -> None:
        """Accept these keys from now on, except revoked ones."""
        self._keys = {key.id: key for key in keys if key.revoked_at is None}

    def authenticate(self, authorization: str | None, api_key: str | None = None) -> Caller:
        """The caller of an `Authorization` header; `ApiError` 401 without a valid API key.

        `api_key` is the key of an `x-api-key` header, which may be empty. A request may have both, with the same key.
        """
        if self._keys is None:
            return self._defaults
        if api_key := (api_key or "").strip():
            if authorization is not None and authorization.partition(" ")[2].strip() != api_key:
                message = "The headers `x-api-key` and `Authorization` have different keys: send one of them."
                raise ApiError(401, message, code="invalid_api_key")
            authorization = f"Bearer {api_key}"
        scheme, _, token = (authorization or "").partition(" ")
        found = _KEY.fullmatch(token.strip()) if scheme.lower() == "bearer" else None
        key = self._keys.get(found["id"]) if found else None
        # The id is public and may be looked up; the secret is compared in constant time, also for an unknown id.
        digest = _digest(found["secret"] if found else "")
        is_valid = hmac.compare_digest(digest, key.sha256 if key else _UNMATCHABLE_DIGEST)
        if key is None or not is_valid:
            raise _unauthorized(authorization)
        return self._caller(key)

    def caller_for_key(self, key_id: str) -> Caller | None:
        """The caller that this key authenticates; None if it is unknown or revoked."""
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
    missing = "You didn't provide an API key: send it as `Authorization: Bearer <key>`."
    return ApiError(401, "Incorrect API key provided." if authorization else missing, code="invalid_api_key")


# ── rate and concurrency limits ───────────────────────────────────────────────────────────────────────────────────────


class RateLimitState(Struct, frozen=True):
    """State of a caller's rate limit, for the `x-ratelimit-*` headers."""

    limit: int
    remaining: int
    reset: float


class RateLimiter(Protocol):
    """Rate limit (token bucket of requests per minute) and concurrency limit (running responses) of each key."""

    async def take(self, caller: Caller) -> RateLimitState | None:
        """Count one request; `ApiError` 429 above the rate limit. None if the caller has no rate limit."""
        ...

    async def begin(self, caller: Caller) -> Callable[[], None]:
        """Count one running response; `ApiError` 429 above the concurrency limit. Returns its idempotent release."""
        ...

    async def resume(self, caller: Caller) -> Callable[[], None]:
        """Like `begin`, for a response that was admitted earlier: it is counted even above the limit."""
        ...

    async def aclose(self) -> None: ...


class _Usage(Struct):
    tokens: float
    updated_at: float
    running: int = 0


class ProcessRateLimiter:
    """A `RateLimiter` in the memory of this process: the only one that serves these keys."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._usages: dict[str, _Usage] = {}

    async def take(self, caller: Caller) -> RateLimitState | None:
        limit = caller.requests_per_minute
        if limit is None:
            return None
        usage, now = self._usage(caller), self._clock()
        usage.tokens = min(float(limit), usage.tokens + (now - usage.updated_at) * limit / 60)
        usage.updated_at = now
        if usage.tokens < 1:
            raise rate_limit_reached(limit, usage.tokens)
        usage.tokens -= 1
        return RateLimitState(limit, int(usage.tokens), (limit - usage.tokens) * 60 / limit)

    async def begin(self, caller: Caller) -> Callable[[], None]:
        limit = caller.concurrent_responses
        if limit is None:
            return lambda: None
        if self._usage(caller).running >= limit:
            raise concurrency_limit_reached(limit)
        return await self.resume(caller)

    async def resume(self, caller: Caller) -> Callable[[], None]:
        usage = self._usage(caller)
        usage.running += 1
        unreleased = [usage]

        def release() -> None:
            while unreleased:
                unreleased.pop().running -= 1

        return release

    async def aclose(self) -> None:
        """Nothing to close."""

    def _usage(self, caller: Caller) -> _Usage:
        return self._usages.setdefault(caller.key_id, _Usage(float(caller.requests_per_minute or 0), self._clock()))


def rate_limit_reached(limit: int, tokens: float) -> ApiError:
    """429 for a bucket with less than one token, with the time until it has one."""
    wait = (1 - tokens) * 60 / limit
    return _too_many_requests(f"Rate limit reached: {limit} requests per minute.", math.ceil(wait))


def concurrency_limit_reached(limit: int) -> ApiError:
    """429 for a key with as many running responses as it may have."""
    return _too_many_requests(f"Concurrency limit reached: {limit} responses may run at a time.", 1)


def _too_many_requests(message: str, retry_after: int) -> ApiError:
    return ApiError(429, message, kind="rate_limit_error", code="rate_limit_exceeded", retry_after=retry_after)
