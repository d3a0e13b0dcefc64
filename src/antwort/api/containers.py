"""API types of /v1/containers: request and response bodies, and events of `exec`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from antwort.api.errors import invalid
from antwort.api.objects import Page
from antwort.api.tools import NetworkPolicy, Skills


class ExpiresAfter(Struct, forbid_unknown_fields=True):
    """Idle time after which a container expires."""

    anchor: Literal["last_active_at"]
    minutes: Annotated[int, Meta(ge=1)]


class CreateContainer(Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/containers`."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    expires_after: ExpiresAfter | None = None
    file_ids: Annotated[list[str], Meta(max_length=50)] | None = None
    memory_limit: str | None = None
    network_policy: NetworkPolicy | None = None
    skills: Skills | None = None


class AddContainerFile(Struct, forbid_unknown_fields=True):
    """`POST /v1/containers/{id}/files` with the id of an uploaded file."""

    file_id: str


class ExecuteCode(Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/containers/{id}/exec`."""

    code: str
    requirements: Annotated[list[str], Meta(max_length=50)] | None = None
    timeout: Annotated[float, Meta(gt=0)] | None = None
    """Seconds; capped by the server's limit."""
    stream: bool | None = None


class Idleness(Struct, kw_only=True):
    """Idle time after which a container expires."""

    anchor: Literal["last_active_at"] = "last_active_at"
    minutes: float


class Network(Struct, kw_only=True):
    """Network access of a container: none."""

    type: Literal["disabled"] = "disabled"


class ContainerObject(Struct, kw_only=True):
    """A container, without its files."""

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
    """Why the earlier state of the container was lost, if it was."""


class ContainerPage(Page, kw_only=True):
    """A page of containers."""

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
    """A page of container files."""

    data: list[ContainerFileObject]


class Archived(Struct, kw_only=True):
    """The result of extracting a tar archive into a container."""

    object: Literal["container.archive"] = "container.archive"
    container_id: str
    files: int
    bytes: int


class Execution(Struct, kw_only=True):
    """The result of running code in a container without a model."""

    object: Literal["container.execution"] = "container.execution"
    container_id: str
    status: Literal["ok", "error", "exit", "interrupted", "timeout", "oom", "ended"]
    output: list[dict[str, str]]
    result: str | None
    exit_code: int
    images: list[dict[str, str]]
    files: list[ContainerFileObject]
    duration_ms: int
    cut_bytes: int
    replaced: bool
    lost: str | None


class ExecOutput(Struct, tag_field="type", tag="exec.output", kw_only=True):
    """Output of running code."""

    stream: Literal["stdout", "stderr"]
    text: str


class ExecCompleted(Struct, tag_field="type", tag="exec.completed", kw_only=True):
    """The last event: the result of the code."""

    execution: Execution


def check(request: CreateContainer) -> None:
    """Reject unsupported parameters by name instead of ignoring them."""
    if request.network_policy is not None and request.network_policy.type != "disabled":
        raise invalid(
            "Containers of this server have no network: 'network_policy' can only be {'type': 'disabled'}.",
            param="network_policy.type",
        )
