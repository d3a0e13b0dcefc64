"""Containers, as the wire has them: what is asked, and what is answered."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from antwort.api.errors import invalid
from antwort.api.tools import NetworkPolicy


class ExpiresAfter(Struct, forbid_unknown_fields=True):
    """How long an idle container lives."""

    anchor: Literal["last_active_at"]
    minutes: Annotated[int, Meta(ge=1)]


class CreateContainer(Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/containers`."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    expires_after: ExpiresAfter | None = None
    file_ids: Annotated[list[str], Meta(max_length=50)] | None = None
    memory_limit: str | None = None
    network_policy: NetworkPolicy | None = None
    skills: list[dict[str, Any]] | None = None


class AddContainerFile(Struct, forbid_unknown_fields=True):
    """`POST /v1/containers/{id}/files`, where the file is one that was uploaded before."""

    file_id: str


class ExecuteCode(Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/containers/{id}/exec`."""

    code: str
    requirements: Annotated[list[str], Meta(max_length=50)] | None = None
    timeout: Annotated[float, Meta(gt=0)] | None = None
    """Seconds; never more than the server allows."""
    stream: bool | None = None


def check(request: CreateContainer) -> None:
    """What containers here cannot be is refused by name, rather than left out in silence."""
    if request.network_policy is not None and request.network_policy.type != "disabled":
        raise invalid(
            "Containers of this server have no network: 'network_policy' can only be {'type': 'disabled'}.",
            param="network_policy.type",
        )
    if request.skills:
        raise invalid("Containers of this server have no skills yet: leave 'skills' out.", param="skills")
