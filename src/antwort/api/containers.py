"""Containers, as the wire has them: what is asked, and what is answered."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from antwort.api.errors import invalid
from antwort.api.objects import Page
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


class Idleness(Struct, kw_only=True):
    """After how long a time without use a container expires."""

    anchor: Literal["last_active_at"] = "last_active_at"
    minutes: float


class Network(Struct, kw_only=True):
    """What a container can reach: nothing."""

    type: Literal["disabled"] = "disabled"


class ContainerObject(Struct, kw_only=True):
    """A container, without what is in it."""

    id: str
    object: Literal["container"] = "container"
    created_at: int
    status: Literal["running", "expired"]
    expires_after: Idleness
    last_active_at: int
    memory_limit: str
    name: str
    network_policy: Network
    lost: str | UnsetType = field(name="antwort:lost", default=UNSET)
    """That what was in it once is gone, and why."""


class ContainerPage(Page, kw_only=True):
    """Some of the containers."""

    data: list[ContainerObject]


class ContainerFileObject(Struct, kw_only=True):
    """A file in a container, without its content."""

    id: str
    object: Literal["container.file"] = "container.file"
    created_at: int
    bytes: int
    container_id: str
    path: str
    source: Literal["user", "assistant"]


class ContainerFilePage(Page, kw_only=True):
    """Some of the files in a container."""

    data: list[ContainerFileObject]


class Archived(Struct, kw_only=True):
    """A tar was unpacked into a container."""

    object: Literal["container.archive"] = "container.archive"
    container_id: str
    files: int
    bytes: int


class Execution(Struct, kw_only=True):
    """Code was run in a container without a model."""

    object: Literal["container.execution"] = "container.execution"
    container_id: str
    status: Literal["ok", "error", "exit", "interrupted", "timeout", "oom", "ended"]
    output: list[dict[str, str]]
    result: str | None
    images: list[dict[str, str]]
    files: list[ContainerFileObject]
    duration_ms: int
    cut_bytes: int
    replaced: bool
    lost: str | None


class ExecOutput(Struct, tag_field="type", tag="exec.output", kw_only=True):
    """While code runs: something that it printed."""

    stream: Literal["stdout", "stderr"]
    text: str


class ExecCompleted(Struct, tag_field="type", tag="exec.completed", kw_only=True):
    """Always the last: what the code came to."""

    execution: Execution


def check(request: CreateContainer) -> None:
    """What containers here cannot be is refused by name, rather than left out in silence."""
    if request.network_policy is not None and request.network_policy.type != "disabled":
        raise invalid(
            "Containers of this server have no network: 'network_policy' can only be {'type': 'disabled'}.",
            param="network_policy.type",
        )
    if request.skills:
        raise invalid("Containers of this server have no skills yet: leave 'skills' out.", param="skills")
