"""SandboxClaims: create one and wait until its pod is ready, renew its shutdown time, delete it, sweep old ones.

A claim has a shutdown time, at which the controller deletes it with its pod, and which is moved while the claim is
held. So a process that is killed leaves no pod for long. The next start of the same instance deletes its claims.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Collection, Coroutine, Mapping
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, Final, TypeVar

import msgspec

from antwort.containers.sandboxes.port import SandboxUnavailable
from antwort.tools.builtins.codeinterpreter.kubernetes.api import (
    ApiNotServed,
    ApiRefused,
    ApiUnreachable,
    KubernetesApi,
    KubernetesError,
)
from antwort.tools.builtins.codeinterpreter.kubernetes.deletions import ClaimDeletions
from antwort.tools.builtins.codeinterpreter.kubernetes.resources import (
    GROUP,
    HOST_RE,
    INSTANCE_LABEL,
    SANDBOX_GROUP,
    ApiVersion,
    Claim,
    ClaimList,
    manifest,
    preferred_version,
    rfc3339,
)

_logger = logging.getLogger(__name__)

T = TypeVar("T")

LIFETIME_SECONDS: Final = 900.0
"""A claim that was not renewed for so long is deleted by the controller."""

_SILENCE_SECONDS: Final = 10.0
_SILENCES_PER_WAIT: Final = 3
_LOSS_SECONDS: Final = 5.0
_EXPIRY_MARGIN: Final = timedelta(minutes=1)
_MIN_PAUSE: Final = 0.1
_MAX_PAUSE: Final = 2.0


class _WatchEvent(msgspec.Struct):
    """One event of a watch. The object of an ERROR is a status."""

    type: str
    object: msgspec.Raw


class _Attempt(msgspec.Struct):
    """One acquisition: the claim's name, its UID when known, and why it is not ready yet."""

    name: str
    uid: str | None = None
    silence: float = _SILENCE_SECONDS
    """How long a watch may send nothing, before the claim is read."""
    may_exist: bool = False
    """Its creation was sent and not refused."""
    reason: str = "the Kubernetes API has not answered"


class Claims:
    """The claims of one instance on one warm pool."""

    def __init__(
        self,
        api: KubernetesApi,
        *,
        namespace: str,
        template: str,
        warm_pool: str,
        instance: str,
        lifetime: float = LIFETIME_SECONDS,
        silence: float = _SILENCE_SECONDS,
        loss_timeout: float = _LOSS_SECONDS,
    ) -> None:
        self.namespace = namespace
        self.pool = f"{namespace}/{warm_pool}"
        self.lifetime = lifetime
        self._api = api
        self._template = template
        self._warm_pool = warm_pool
        self._instance = instance
        self._silence = silence
        self._loss_timeout = loss_timeout
        self._version: ApiVersion | None = None
        self._is_outdated = False
        """The version was not served any more, at the last call."""
        self._deletions = ClaimDeletions(self._delete, lifetime)
        self._names: set[str] = set()
        """The claims of this process, which a sweep leaves alone."""

    async def acquire(self, timeout: float) -> Claim:  # noqa: ASYNC109 - the error names the last reason
        """A claim whose pod is ready. If that fails or is cancelled, the claim is deleted."""
        silence = min(self._silence, timeout / _SILENCES_PER_WAIT)
        attempt = _Attempt(f"antwort-{secrets.token_hex(10)}", silence=silence)
        self._names.add(attempt.name)
        try:
            async with asyncio.timeout(timeout):
                return await self._wait_until_ready(await self._create(attempt, timeout), attempt)
        except BaseException as error:
            self._names.discard(attempt.name)
            if attempt.may_exist:
                await self._deletions.wait(self._deletions.start(attempt.name, attempt.uid))
            if isinstance(error, TimeoutError):
                message = f"No pod of the warm pool {self.pool} became ready within {timeout:g} s ({attempt.reason})."
                raise SandboxUnavailable(message) from error
            if isinstance(error, KubernetesError):
                raise SandboxUnavailable(f"No pod of the warm pool {self.pool} can be claimed: {error}") from error
            raise

    async def address(self, claim: Claim) -> str:
        """The host of its pod: the first IP address, or the name of the Sandbox's service."""
        if claim.pod_ip is not None:
            return f"[{claim.pod_ip}]" if ":" in claim.pod_ip else claim.pod_ip
        path = f"/apis/{SANDBOX_GROUP}/{await self._served_version()}/namespaces/{self.namespace}/sandboxes"
        try:
            sandbox = msgspec.json.decode(await self._api.request("GET", f"{path}/{claim.sandbox_name}"), type=_Sandbox)
        except (KubernetesError, msgspec.DecodeError, UnicodeError) as error:
            raise SandboxUnavailable(f"The Sandbox {claim.sandbox_name} cannot be read: {error}") from error
        if not sandbox.status.serviceFQDN:
            reason = f"The Sandbox {claim.sandbox_name} has neither a pod address nor a service."
            raise SandboxUnavailable(f"{reason} Set `service: true` in the SandboxTemplate {self._template}.")
        if not HOST_RE.fullmatch(sandbox.status.serviceFQDN):
            raise SandboxUnavailable(f"The service name of the Sandbox {claim.sandbox_name} is invalid.")
        return sandbox.status.serviceFQDN

    async def loss_reason(self, held: Claim, *, may_flap: bool = False) -> str | None:
        """Why the pod of a held claim is gone; None if it is not, or if that is unknown.

        `may_flap` is for a pod that answers: that the claim is not ready at the moment does not matter then.
        """
        try:
            return await self._loss_reason(held, may_flap=may_flap)
        except KubernetesError:
            return None

    async def check_pod(self, held: Claim) -> None:
        """Raise `SandboxUnavailable` if the pod of the claim is gone, and `KubernetesError` if that is unknown."""
        if (reason := await self._loss_reason(held, may_flap=True)) is not None:
            raise SandboxUnavailable(reason)

    async def _loss_reason(self, held: Claim, *, may_flap: bool) -> str | None:
        claim = await self._get(held.metadata.name)
        if claim is None or _is_deleted(claim, held.metadata.uid):
            return "The SandboxClaim was deleted, and its pod with it."
        if claim.failure is not None or not (claim.is_ready or may_flap):
            return f"The pod of the SandboxClaim has ended ({claim.failure or claim.progress})."
        if claim.sandbox_name and not claim.has_pod_of(held):
            return "The pod of the SandboxClaim was replaced by another one."
        return None

    async def await_loss(self, held: Claim) -> str | None:
        """The same for a pod that does not answer any more: its end is reported a few seconds after it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._loss_timeout
        pause = _MIN_PAUSE
        while (reason := await self.loss_reason(held)) is None and loop.time() + pause < deadline:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)
        return reason

    async def reload(self, claim: Claim) -> Claim:
        """The claim as it is now, or the same one if it cannot be read; `SandboxUnavailable` after its end."""
        try:
            current = await self._get(claim.metadata.name)
        except KubernetesError:
            return claim
        if current is None or _is_deleted(current, claim.metadata.uid):
            raise _deleted(claim.metadata.name)
        if current.failure is not None:
            raise _failed(claim.metadata.name, current.failure)
        return current if current.sandbox_name else claim

    async def renew(self, claim: Claim) -> None:
        """Move the shutdown time; `KubernetesError` if that fails. Another claim of that name is not changed."""
        body = {
            "metadata": {"uid": claim.metadata.uid},
            "spec": {"lifecycle": {"shutdownTime": rfc3339(self._shutdown_time()), "shutdownPolicy": "Delete"}},
        }
        await self._call("PATCH", claim.metadata.name, body=body, content_type="application/merge-patch+json")

    def discard(self, claim: Claim, *, wait: bool = True) -> Coroutine[Any, Any, None]:
        """Delete a claim. Awaiting the result waits up to five seconds, or not at all.

        The deletion is started by the call: a caller that is cancelled again while it cleans up may never run the
        result. It continues in the background.
        """
        self._names.discard(claim.metadata.name)
        deletion = self._deletions.start(claim.metadata.name, claim.metadata.uid)
        return self._deletions.wait(*[deletion] if wait else [])

    async def sweep(self, ended: Collection[str] = ()) -> int:
        """Delete the claims of these instances, and those that have expired; returns their number.

        Others are left alone, because an instance that is unknown here may be one that starts, or one of another
        deployment that uses the namespace. So are the claims of this process.
        """
        reply = await self._call("GET", params={"labelSelector": INSTANCE_LABEL})
        now = datetime.now(UTC)
        stale = [
            claim.metadata
            for claim in _decode(reply, ClaimList).items
            for instance in [claim.metadata.labels.get(INSTANCE_LABEL)]
            if claim.metadata.name not in self._names and (instance in ended or claim.has_expired(now, _EXPIRY_MARGIN))
        ]
        await self._deletions.wait(*(self._deletions.start(one.name, one.uid) for one in stale))
        return len(stale)

    async def sweep_own(self) -> int:
        """Delete the claims that an earlier process of this instance has left."""
        return await self.sweep([self._instance])

    async def aclose(self) -> None:
        """Wait for the deletions, and close the connections."""
        await self._deletions.aclose()
        await self._api.aclose()

    # ── create ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _create(self, attempt: _Attempt, timeout: float) -> Claim:  # noqa: ASYNC109 - the claim outlives it
        """Create the claim. After a lost reply it may exist already: its name is random, so no other has it."""
        pause = _MIN_PAUSE
        while True:
            try:
                claim = await self._post(attempt, timeout)
            except ApiUnreachable as error:
                attempt.reason = str(error)
            else:
                attempt.uid = claim.metadata.uid
                return claim
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)

    async def _post(self, attempt: _Attempt, wait: float) -> Claim:
        version = await self._served_version()
        body = manifest(
            version,
            name=attempt.name,
            instance=self._instance,
            template=self._template,
            warm_pool=self._warm_pool,
            shutdown_time=self._shutdown_time() + timedelta(seconds=wait),
        )
        was_sent, attempt.may_exist = attempt.may_exist, True
        try:
            return _decode(await self._call("POST", body=body), Claim)
        except ApiRefused as refused:
            if refused.status == HTTPStatus.CONFLICT:
                return _decode(await self._call("GET", attempt.name), Claim)
            attempt.may_exist = was_sent
            raise

    # ── wait ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _wait_until_ready(self, claim: Claim, attempt: _Attempt) -> Claim:
        """Watch the claim from the version that was created. When a watch ends, read the claim and watch it again.

        The claim is read because a deletion that happened between two watches causes no event, and because a version
        that is too old (410) cannot be watched.
        """
        pause = _MIN_PAUSE
        while not _is_usable(claim, attempt):
            try:
                async with aclosing(self._changes(claim, attempt.silence)) as changes:
                    async for changed in changes:
                        claim = changed
                        if _is_usable(claim, attempt):
                            return claim
                        pause = _MIN_PAUSE
                await asyncio.sleep(pause)
                current = await self._get(attempt.name)
                if current is None:
                    raise _deleted(attempt.name)
                claim = current
            except ApiUnreachable as error:
                attempt.reason = str(error)
                await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)
        return claim

    async def _changes(self, claim: Claim, silence: float) -> AsyncGenerator[Claim, None]:
        """The versions of the claim after this one; ends with the watch, whatever the cause is."""
        name, version = claim.metadata.name, claim.metadata.resource_version
        events = self._api.watch(await self._path(), name=name, resource_version=version, silence=silence)
        try:
            async with aclosing(events) as lines:
                async for line in lines:
                    event = msgspec.json.decode(line, type=_WatchEvent)
                    if event.type == "DELETED":
                        raise _deleted(name)
                    if event.type == "ERROR":
                        _logger.debug("the watch of %s ended with %s", name, bytes(event.object))
                        return
                    if event.type != "BOOKMARK":
                        yield _decode(event.object, Claim)
        except (ApiUnreachable, msgspec.DecodeError, UnicodeError) as error:
            _logger.debug("the watch of %s ended: %s", name, error)
        except ApiNotServed:
            self._is_outdated = True
        except ApiRefused as refused:
            if refused.status != HTTPStatus.GONE:
                raise

    # ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _call(
        self,
        method: str,
        name: str = "",
        *,
        body: object = None,
        content_type: str = "application/json",
        params: Mapping[str, str] | None = None,
    ) -> bytes:
        """A call on one claim, or on all. `ApiUnreachable` where the API server does not serve claims at the moment."""
        path = f"{await self._path()}/{name}" if name else await self._path()
        try:
            return await self._api.request(method, path, body=body, content_type=content_type, params=params)
        except ApiNotServed as error:
            self._is_outdated = True
            raise ApiUnreachable(str(error)) from error

    async def _delete(self, name: str, options: object) -> bytes:
        return await self._call("DELETE", name, body=options)

    async def _get(self, name: str) -> Claim | None:
        try:
            return _decode(await self._call("GET", name), Claim)
        except ApiRefused as refused:
            if refused.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    async def _path(self) -> str:
        return f"/apis/{GROUP}/{await self._served_version()}/namespaces/{self.namespace}/sandboxclaims"

    async def _served_version(self) -> ApiVersion:
        """The preferred version of those that the cluster serves; asked again when it is not served any more."""
        if self._version is None or self._is_outdated:
            try:
                group = _decode(await self._api.request("GET", f"/apis/{GROUP}"), _ApiGroup)
            except ApiNotServed as error:
                message = f"agent-sandbox is not installed in the cluster: there is no API group {GROUP}"
                raise self._not_served(message) from error
            version = preferred_version([one.version for one in group.versions])
            if version is None:
                raise self._not_served(f"the cluster serves no version of {GROUP} that this server supports")
            self._version, self._is_outdated = version, False
        return self._version

    def _not_served(self, message: str) -> KubernetesError:
        """Worth a retry if claims were served before: an API server that has just been started has no groups."""
        return ApiNotServed(message) if self._version is None else ApiUnreachable(message)

    def _shutdown_time(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.lifetime)


class _ServedVersion(msgspec.Struct):
    version: str


class _ApiGroup(msgspec.Struct):
    versions: list[_ServedVersion]


class _SandboxStatus(msgspec.Struct):
    serviceFQDN: str = ""  # noqa: N815 - as the API spells it


class _Sandbox(msgspec.Struct):
    status: _SandboxStatus = msgspec.field(default_factory=_SandboxStatus)


def _decode(data: bytes | msgspec.Raw, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ApiUnreachable(f"the Kubernetes API sent an invalid {kind.__name__}: {error}") from error


def _is_usable(claim: Claim, attempt: _Attempt) -> bool:
    """Whether the claim is ready; raises `SandboxUnavailable` if it will not be."""
    if _is_deleted(claim, attempt.uid):
        raise _deleted(attempt.name)
    if claim.failure is not None:
        raise _failed(attempt.name, claim.failure)
    attempt.reason = claim.progress
    return claim.is_ready


def _is_deleted(claim: Claim, uid: str | None) -> bool:
    """Whether the claim with this UID is gone: deleted, or another one has its name."""
    return claim.metadata.uid != uid or claim.metadata.deletion_timestamp is not None


def _failed(name: str, why: str) -> SandboxUnavailable:
    return SandboxUnavailable(f"The SandboxClaim {name} has failed: {why}")


def _deleted(name: str) -> SandboxUnavailable:
    return SandboxUnavailable(f"The SandboxClaim {name} was deleted before its pod was ready.")
