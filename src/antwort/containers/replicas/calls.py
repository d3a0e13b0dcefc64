"""Calls between replicas: their arguments, results and errors as JSON, and the tokens that authenticate them.

    POST {replica_url}/antwort/replica/containers/{container_id}
    authorization: Replica <token>
    antwort-arguments: <JSON, base64url>        only where the body is the content of a file or an archive
    body: the arguments as JSON, or that content

The reply is a stream of server-sent events (`output`, `result`, `error`), or bytes for `ReadFilesCall`. A token is
sealed with the keys that all replicas share, for a purpose of its own: a tenant cannot make one. It is bound to the
replica, the path, the tenant, the sandbox and the arguments, expires after a minute, and is accepted once.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias, cast

import msgspec
from msgspec import Struct

from antwort.api.errors import ApiError, ErrorCode, internal
from antwort.containers.registry import HeldElsewhere
from antwort.containers.sandboxes.port import (
    RefusalReason,
    SandboxError,
    SandboxLost,
    SandboxRefused,
    SandboxUnavailable,
)
from antwort.engine.stores import Owner, SandboxRef, StoreFault
from antwort.sealing import InvalidSeal, Sealer
from antwort.telemetry import log

CALLS_PATH = "/antwort/replica/containers/"
"""The path of calls, which ends with the id of the container. Not part of the public API."""
ARGUMENTS_HEADER = "antwort-arguments"
AUTH_SCHEME = "Replica"
CALL_ERROR_STATUS = 409
"""The status of a reply whose body is a `CallError`."""

_PURPOSE = "\0replica call"  # in place of a tenant: no tenant has a name with a NUL
_ITEM = "replica-call"
_LIFETIME = 60.0
"""Seconds for which a token is valid. The clocks of two replicas may differ by as much."""


# ── arguments ────────────────────────────────────────────────────────────────────────────────────────────────────────


class ExecuteCall(Struct, frozen=True, tag="execute"):
    """Run code for at most `seconds`."""

    code: str
    requirements: Sequence[str]
    seconds: float


class RunCommandCall(Struct, frozen=True, tag="run_command"):
    """Run a shell command for at most `seconds`."""

    command: str
    seconds: float


class CopyFilesCall(Struct, frozen=True, tag="copy_files"):
    """Copy uploaded files."""

    file_ids: Sequence[str]
    again: bool


class PutFileCall(Struct, frozen=True, tag="put_file"):
    """Write or replace a file, whose content is the body."""

    path: str


class UnpackCall(Struct, frozen=True, tag="unpack"):
    """Extract the tar archive that is the body."""


class DeleteFileCall(Struct, frozen=True, tag="delete_file"):
    """Delete a file."""

    file_id: str


class PrepareCall(Struct, frozen=True, tag="prepare"):
    """Make sure that there is a sandbox."""


class SyncFilesCall(Struct, frozen=True, tag="sync_files"):
    """Store what code has written."""


class ReleaseCall(Struct, frozen=True, tag="release"):
    """End the sandbox of a deleted container."""


class ReadFilesCall(Struct, frozen=True, tag="read"):
    """Read one file, or all."""

    file_id: str | None
    """None for all files, as a tar archive."""


Call: TypeAlias = (
    ExecuteCall
    | RunCommandCall
    | CopyFilesCall
    | PutFileCall
    | UnpackCall
    | DeleteFileCall
    | PrepareCall
    | SyncFilesCall
    | ReleaseCall
    | ReadFilesCall
)

encode_call = msgspec.json.Encoder().encode
decode_call: Callable[[bytes], Call] = msgspec.json.Decoder(Call).decode


def encode_header(arguments: bytes) -> str:
    """Arguments as the value of `ARGUMENTS_HEADER`."""
    return base64.urlsafe_b64encode(arguments).decode()


def decode_header(value: str) -> bytes:
    """The arguments of the header; empty if it is malformed."""
    try:
        return base64.urlsafe_b64decode(value)
    except ValueError:
        return b""


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class CallError(Struct, frozen=True, omit_defaults=True):
    """An exception of the replica that ran the operation; `to_exception` makes an equal one."""

    kind: Literal["api", "elsewhere", "lost", "refused", "unavailable", "store", "internal"]
    message: str = ""
    status: int = 500
    type: str = "server_error"
    code: str | None = None
    param: str | None = None
    retry_after: int | None = None
    should_retry: bool | None = None
    has_begun: bool = True
    why: RefusalReason = "request"

    def to_exception(self) -> Exception:  # noqa: PLR0911 - one line for each kind of error
        match self.kind:
            case "api":
                return ApiError(
                    self.status,
                    self.message,
                    kind=self.type,
                    code=cast("ErrorCode | None", self.code),
                    param=self.param,
                    retry_after=self.retry_after,
                    should_retry=self.should_retry,
                )
            case "elsewhere":
                return HeldElsewhere()
            case "lost":
                return SandboxLost(self.message, begun=self.has_begun)
            case "refused":
                return SandboxRefused(self.message, self.why)
            case "unavailable":
                return SandboxUnavailable(self.message)
            case "store":
                return StoreFault(self.message)
            case "internal":
                return internal()


def to_call_error(error: Exception) -> CallError:  # noqa: PLR0911 - one line for each kind of error
    """An exception of an operation, as it is sent to the calling replica. An unexpected one is logged."""
    match error:
        case ApiError():
            return CallError(
                "api",
                error.message,
                error.status,
                error.kind,
                error.code,
                error.param,
                error.retry_after,
                error.should_retry,
            )
        case HeldElsewhere():
            return CallError("elsewhere")
        case SandboxLost():
            return CallError("lost", str(error), has_begun=error.begun)
        case SandboxRefused():
            return CallError("refused", str(error), why=error.why)
        case SandboxError():
            return CallError("unavailable", str(error))
        case StoreFault():
            return CallError("store", str(error))
        case _:
            log.error("unexpected_error", exc_info=error)
            return CallError("internal")


# ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class InvalidCall(Exception):
    """A request to `CALLS_PATH` that is not an authentic call of another replica."""


class CallToken(Struct, frozen=True):
    """What one call is allowed to do."""

    sender: str
    target: str
    """The id of the replica that may accept it, which is new for each process."""
    path: str
    tenant: str
    key_id: str
    sandbox: str
    digest: str
    """The SHA-256 of the arguments."""
    issued_at: float
    nonce: str

    @property
    def owner(self) -> Owner:
        return Owner(self.tenant, self.key_id)

    def check_arguments(self, arguments: bytes) -> None:
        """`InvalidCall` unless the token was issued for these arguments."""
        if not hmac.compare_digest(self.digest, hashlib.sha256(arguments).hexdigest()):
            raise InvalidCall("the arguments are not those of the token")


_decode_token = msgspec.json.Decoder(CallToken).decode


class CallTokens:
    """Issues the tokens of this replica's calls, and verifies those of calls to it."""

    def __init__(self, sealer: Sealer, own_id: str, clock: Callable[[], float] = time.time) -> None:
        self._sealer = sealer
        self._own_id = own_id
        self._clock = clock
        self._used: set[str] = set()
        self._used_until: deque[tuple[float, str]] = deque()

    def issue(self, owner: Owner, container_id: str, sandbox: SandboxRef, arguments: bytes) -> str:
        """A token for one call to the replica that holds a sandbox."""
        token = CallToken(
            sender=self._own_id,
            target=sandbox.replica,
            path=CALLS_PATH + container_id,
            tenant=owner.tenant,
            key_id=owner.key_id,
            sandbox=sandbox.sandbox,
            digest=hashlib.sha256(arguments).hexdigest(),
            issued_at=self._clock(),
            nonce=secrets.token_urlsafe(16),
        )
        return self._sealer.seal(_PURPOSE, _ITEM, msgspec.json.encode(token))

    def verify(self, authorization: str, path: str) -> CallToken:
        """The token of a request, which is accepted once; `InvalidCall` if it is not for this replica and path."""
        scheme, _, sealed = authorization.partition(" ")
        if scheme != AUTH_SCHEME:
            raise InvalidCall("there is no token")
        try:
            token = _decode_token(self._sealer.open(_PURPOSE, _ITEM, sealed).content)
        except (InvalidSeal, msgspec.DecodeError) as error:
            raise InvalidCall("the token is not sealed with a key of this server") from error
        now = self._clock()
        if token.target != self._own_id:
            raise InvalidCall("the token is for another replica")
        if token.path != path:
            raise InvalidCall("the token is for another container")
        if abs(now - token.issued_at) > _LIFETIME:
            raise InvalidCall(f"the token has expired, or the clocks differ by more than {_LIFETIME:g} s")
        self._use_once(token.nonce, now)
        return token

    def _use_once(self, nonce: str, now: float) -> None:
        """Remember a nonce for as long as its token could be accepted."""
        while self._used_until and self._used_until[0][0] < now:
            self._used.discard(self._used_until.popleft()[1])
        if nonce in self._used:
            raise InvalidCall("the token was used before")
        self._used.add(nonce)
        self._used_until.append((now + 2 * _LIFETIME, nonce))
