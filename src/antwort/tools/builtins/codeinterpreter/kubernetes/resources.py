"""SandboxClaim resource: the fields that are read, the manifest that is written, and what a status means."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct, field

GROUP: Final = "extensions.agents.x-k8s.io"
SANDBOX_GROUP: Final = "agents.x-k8s.io"
INSTANCE_LABEL: Final = "antwort.dev/instance"

HOST_RE: Final = re.compile(r"[a-zA-Z0-9]([-a-zA-Z0-9.]{0,251}[a-zA-Z0-9])?")
"""A DNS name."""

_MAX_DESCRIPTION: Final = 500

ApiVersion: TypeAlias = Literal["v1beta1", "v1alpha1"]
TERMINAL_REASONS: Final = frozenset(
    {
        "InvalidMetadata",
        "EnvVarsInjectionRejected",
        "VolumeClaimTemplatesError",
        "ClaimExpired",
        "SandboxExpired",
        "PodFailed",
        "PodSucceeded",
        "InvalidConfiguration",
        "TemplateNotFound",
        "WarmPoolNotFound",
    }
)
"""Reasons of the Ready condition after which a claim does not become ready."""


class ClaimMetadata(Struct, rename="camel"):
    """Metadata of a claim."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = field(default_factory=dict[str, str])
    deletion_timestamp: str | None = None


class ClaimCondition(Struct):
    """One condition of a claim's status."""

    type: str
    status: str = "Unknown"
    reason: str = ""
    message: str = ""


class ClaimedPod(Struct):
    """The Sandbox that a claim has adopted: its name is not the claim's."""

    name: str = ""
    pod_ips: list[str] = field(default_factory=list[str], name="podIPs")


class ClaimStatus(Struct):
    """Status of a claim, as the controller writes it."""

    conditions: list[ClaimCondition] = field(default_factory=list[ClaimCondition])
    sandbox: ClaimedPod | None = None


class ClaimLifecycle(Struct, rename="camel"):
    """When the controller deletes a claim by itself."""

    shutdown_time: datetime | None = None


class ClaimSpec(Struct):
    """The part of a claim's spec that is read."""

    lifecycle: ClaimLifecycle | None = None


class Claim(Struct):
    """A SandboxClaim."""

    metadata: ClaimMetadata = field(default_factory=ClaimMetadata)
    spec: ClaimSpec = field(default_factory=ClaimSpec)
    status: ClaimStatus = field(default_factory=ClaimStatus)

    @property
    def is_ready(self) -> bool:
        """Whether its pod can be used. A status flaps: only Ready with a sandbox counts."""
        condition = self._condition("Ready")
        return condition is not None and condition.status == "True" and bool(self.sandbox_name)

    @property
    def sandbox_name(self) -> str:
        """The name of its Sandbox; empty for one that is no DNS name, since it is part of a URL and a header."""
        name = "" if self.status.sandbox is None else self.status.sandbox.name
        return name if HOST_RE.fullmatch(name) else ""

    @property
    def pod_ip(self) -> str | None:
        """The first address of its pod; None for one that is no IP address, for the same reason."""
        pod = self.status.sandbox
        return _ip_address(pod.pod_ips[0]) if pod is not None and pod.pod_ips else None

    def has_pod_of(self, earlier: Claim) -> bool:
        """Whether it has the same Sandbox as before, at the same address, where both addresses are known."""
        addresses = () if self.status.sandbox is None else [_ip_address(one) for one in self.status.sandbox.pod_ips]
        is_same_address = not addresses or earlier.pod_ip is None or earlier.pod_ip in addresses
        return self.sandbox_name == earlier.sandbox_name and is_same_address

    @property
    def failure(self) -> str | None:
        """Why the claim does not become ready any more, in the words of the controller; None if it may."""
        for condition in self.status.conditions:
            is_terminal = condition.reason in TERMINAL_REASONS and (condition.type, condition.status) != (
                "Ready",
                "True",
            )
            if is_terminal or (condition.type, condition.status) == ("Finished", "True"):
                return _describe(condition)
        return None

    @property
    def progress(self) -> str:
        """The last reason of the controller for the claim not being ready."""
        condition = self._condition("Ready")
        return "the controller has not reported any status" if condition is None else _describe(condition)

    def has_expired(self, now: datetime, margin: timedelta) -> bool:
        """Whether its shutdown time passed more than `margin` ago: it was not renewed, and is not deleted yet."""
        lifecycle = self.spec.lifecycle
        if lifecycle is None or lifecycle.shutdown_time is None:
            return False
        return lifecycle.shutdown_time + margin < now

    def _condition(self, kind: str) -> ClaimCondition | None:
        return next((one for one in self.status.conditions if one.type == kind), None)


class ClaimList(Struct):
    """A list of claims."""

    items: list[Claim]


def _ip_address(text: str) -> str | None:
    """An IP address in its canonical form; None for other text, and for one with a zone, which may be any text."""
    try:
        return None if "%" in text else str(ipaddress.ip_address(text))
    except ValueError:
        return None


def _describe(condition: ClaimCondition) -> str:
    """Reason and message of the controller, shortened: both end up in errors."""
    text = f"{condition.reason}: {condition.message}" if condition.message else condition.reason
    return text if len(text) <= _MAX_DESCRIPTION else f"{text[:_MAX_DESCRIPTION]}…"


def preferred_version(served: Collection[str]) -> ApiVersion | None:
    """The version to write claims in: v1beta1 if the cluster serves it."""
    if "v1beta1" in served:
        return "v1beta1"
    return "v1alpha1" if "v1alpha1" in served else None


def manifest(
    version: ApiVersion, *, name: str, instance: str, template: str, warm_pool: str, shutdown_time: datetime
) -> dict[str, Any]:
    """A claim to create. It is deleted at `shutdown_time`, unless that is moved."""
    reference: dict[str, Any] = {"warmPoolRef": {"name": warm_pool}}
    if version == "v1alpha1":
        reference = {"sandboxTemplateRef": {"name": template}, "warmpool": warm_pool}
    lifecycle = {"shutdownTime": rfc3339(shutdown_time), "shutdownPolicy": "Delete"}
    return {
        "apiVersion": f"{GROUP}/{version}",
        "kind": "SandboxClaim",
        "metadata": {"name": name, "labels": {INSTANCE_LABEL: instance}},
        "spec": {**reference, "lifecycle": lifecycle},
    }


def rfc3339(time: datetime) -> str:
    """A time as Kubernetes writes it: UTC, in whole seconds."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
