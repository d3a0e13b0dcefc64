"""`OpenAICodeInterpreterTool`: Python that OpenAI runs, its containers, and what comes back. Sends nothing.

A container is asked for in one of three ways: a new one (`AutoContainerConfig`), one that exists
(`ExistingContainerRef`), or as plain data in the form that the API has. They are read when a request is built, so that
what is wrong with one is told with the prompt's name; `container_of` is that reading.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar, cast, get_args, get_type_hints

from weakincentives.errors import PromptValidationError, WorkspaceError
from weakincentives.filesystem import HostMount
from weakincentives.prompt import ProviderTool, ToolContext, ToolExample, ToolHandler, ToolResult

P = TypeVar("P")
R = TypeVar("R")

MEMORY_TIERS = ("1g", "4g", "16g", "64g")
MOST_FILES = 50

_POLICIES = {"disabled": {"type"}, "allowlist": {"type", "allowed_domains", "domain_secrets"}}
_AUTO_FIELDS = ("type", "memory_limit", "file_ids", "network_policy", "host_mounts")
_REF_FIELDS = ("id", "memory_limit")


@dataclass(frozen=True, kw_only=True)
class AutoContainerConfig:
    """A new container, or the one that the conversation already uses.

    `file_ids` are uploaded files to begin with. `host_mounts` are files of this machine; they are uploaded when they
    are needed, and taken back when the evaluation ends. `network_policy` is the API's own form; without one there is
    no network.
    """

    memory_limit: str = "1g"
    file_ids: tuple[str, ...] = ()
    network_policy: Mapping[str, Any] | None = field(default=None, hash=False, repr=False)  # it may hold secrets
    host_mounts: tuple[HostMount, ...] = ()


@dataclass(frozen=True)
class ExistingContainerRef:
    """A container that was made before. Its memory was settled then; here it only documents what is expected."""

    id: str
    memory_limit: str | None = None


ContainerLike: TypeAlias = AutoContainerConfig | ExistingContainerRef | Mapping[str, Any] | str


@dataclass(frozen=True)
class CodeInterpreterConfig:
    """How code interpreter is declared. Host mounts are read below `allowed_host_roots` only; none are, without any."""

    container: ContainerLike = field(default_factory=AutoContainerConfig, hash=False)
    allowed_host_roots: tuple[str | os.PathLike[str], ...] = ()


@dataclass(frozen=True)
class CodeInterpreterCall:
    """What the model ran, and where."""

    code: str = ""
    container_id: str | None = None


@dataclass(frozen=True)
class ContainerFile:
    """A file in a container, as it can be asked for."""

    container_id: str
    file_id: str
    filename: str


@dataclass(frozen=True)
class CodeInterpreterResult:
    """What came of a call. `files` are those that the model speaks of afterwards; images are URLs, mostly data URLs.

    `stdout`, `stderr` and `exit_code` are None where the provider does not tell them apart, as OpenAI does not.
    """

    code: str = ""
    logs: str = ""
    images: tuple[str, ...] = ()
    files: tuple[ContainerFile, ...] = ()
    container_id: str | None = None
    status: str = "completed"
    stdout: str | None = None
    stderr: str | None = None
    exit_code: int | None = None

    def render(self) -> str:
        """The logs; where there are none, what else there is."""
        made = [f"{len(self.images)} image(s)"] if self.images else []
        made += [file.filename for file in self.files]
        return self.logs or (f"(no text; made: {', '.join(made)})" if made else "(no output)")


@dataclass(frozen=True, kw_only=True, init=False)
class OpenAICodeInterpreterTool(ProviderTool[P, R, CodeInterpreterConfig], Generic[P, R]):
    """Code interpreter, with a container of your choice and a say in what becomes of its results.

    `handle_provider_output` gets a `CodeInterpreterResult`; one that is annotated to take a `dict` gets plain data,
    with the logs as `output_text`. `container` is then the declaration's container in the API's own form.
    """

    provider: str = field(default="openai", init=False)
    capability: str = field(default="code_interpreter", init=False)

    def __init__(
        self,
        *,
        name: str = "code_interpreter",
        description: str = "Executes Python that the model wrote, in a sandboxed container.",
        container: ContainerLike | None = None,
        allowed_host_roots: Sequence[str | os.PathLike[str]] = (),
        handle_provider_output: Callable[[R, ToolContext], ToolResult[R]] | None = None,
        handler: ToolHandler[P, R] | None = None,
        examples: Sequence[ToolExample[P, R]] = (),
        accepts_overrides: bool = False,
        config: CodeInterpreterConfig | None = None,
    ) -> None:
        asked = AutoContainerConfig() if container is None else container
        values: dict[str, object] = {
            "name": name,
            "description": description,
            "handler": handler,
            "examples": examples,
            "accepts_overrides": accepts_overrides,
            "provider": "openai",
            "capability": "code_interpreter",
            "config": config or CodeInterpreterConfig(asked, _roots(allowed_host_roots)),
            "handle_provider_output": handle_provider_output,
            "param_descriptions": {},
        }
        for attribute, value in values.items():
            object.__setattr__(self, attribute, value)
        self.__post_init__()

    @property
    def container(self) -> Any:  # noqa: ANN401 - a string or plain data, ready for any client's `tools=`
        """The container in the API's own form. Host mounts are not in it: their files have to be uploaded first."""
        return plain_container(self.config.container)

    def _types(self) -> tuple[Any, Any]:
        if self.type_arguments:
            return self.type_arguments[0], self.type_arguments[1]
        taken = _first_hint(self.handle_provider_output) or _returned(self.handler)
        return _first_hint(self.handler) or CodeInterpreterCall, taken or CodeInterpreterResult


def _roots(given: Sequence[str | os.PathLike[str]]) -> tuple[str | os.PathLike[str], ...]:
    """One path alone would fall into its letters, the first of which is the root of everything."""
    if not _is_list(given):
        raise PromptValidationError(f"allowed_host_roots must be a list of directories, not {given!r}")
    return tuple(given)


def container_of(given: ContainerLike) -> AutoContainerConfig | ExistingContainerRef:
    """Read what was asked for; a `ValueError` names the field and what it may be."""
    read = given if isinstance(given, AutoContainerConfig | ExistingContainerRef) else _read(given)
    if isinstance(read, ExistingContainerRef):
        if not isinstance(read.id, str) or not read.id.strip():  # pyright: ignore[reportUnnecessaryIsInstance] - not everybody checks types
            raise ValueError(f"container.id must be the id of a container, such as 'cntr_…', not {read.id!r}")
        if read.memory_limit is not None:
            _check_tier(read.memory_limit)
        return read
    _check_tier(read.memory_limit)
    _check_policy(read.network_policy)
    _check_mounts(read.host_mounts)
    if not _is_list(read.file_ids) or not all(isinstance(one, str) and one for one in read.file_ids):  # pyright: ignore[reportUnnecessaryIsInstance] - the same
        raise ValueError(f"container.file_ids must be ids of uploaded files, not {read.file_ids!r}")
    if len(read.file_ids) > MOST_FILES:
        raise ValueError(f"container.file_ids may name at most {MOST_FILES} files, not {len(read.file_ids)}")
    return read


def plain_container(given: ContainerLike, file_ids: Iterable[str] = ()) -> str | dict[str, Any]:
    """A container as a request holds it, with more files; unchecked, and without host mounts."""
    match given:
        case str():
            return given
        case ExistingContainerRef(id=known):
            return known
        case AutoContainerConfig():
            files = [*given.file_ids, *file_ids]
            plain: dict[str, Any] = {"type": "auto", "memory_limit": given.memory_limit}
            plain |= {"file_ids": files} if files else {}
            return plain | ({"network_policy": dict(given.network_policy)} if given.network_policy else {})
        case _:
            known = given.get("id")
            return known if isinstance(known, str) else {key: given[key] for key in given if key != "host_mounts"}


def _read(given: Mapping[str, Any] | str) -> AutoContainerConfig | ExistingContainerRef:
    if isinstance(given, str):
        return ExistingContainerRef(given)
    if not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - not everybody checks types
        raise ValueError(f"container must be an id, an AutoContainerConfig or an ExistingContainerRef, not {given!r}")  # noqa: TRY004 - whoever reads it expects one kind
    by_id = "id" in given and given.get("type") is None
    known = _REF_FIELDS if by_id else _AUTO_FIELDS
    if unknown := sorted(given.keys() - set(known)):
        raise ValueError(f"container.{unknown[0]} is not known; allowed are: {', '.join(known)}")
    if by_id:
        return ExistingContainerRef(given["id"], given.get("memory_limit"))
    if given.get("type") != "auto":
        raise ValueError(f"container needs type 'auto' or the id of a container, and has {dict(given)!r}")
    tier = given.get("memory_limit")
    return AutoContainerConfig(
        memory_limit="1g" if tier is None else tier,
        file_ids=_several(given, "file_ids"),
        network_policy=given.get("network_policy"),
        host_mounts=tuple(map(_mount, _several(given, "host_mounts"))),
    )


def _several(given: Mapping[str, Any], name: str) -> tuple[Any, ...]:
    value = given.get(name)
    if value is None:
        return ()
    if not _is_list(value):
        raise ValueError(f"container.{name} must be a list, not {value!r}")
    return tuple(value)


def _is_list(value: object) -> bool:
    """A text is none, though it has letters, and neither is a mapping, though it has keys."""
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)


def _mount(given: HostMount | Mapping[str, Any]) -> HostMount:
    if isinstance(given, HostMount):
        return given
    try:
        return HostMount(**given)
    except (TypeError, WorkspaceError) as error:
        raise ValueError(f"container.host_mounts has {given!r}, which is no HostMount: {error}") from error


def _check_mounts(mounts: object) -> None:
    if not _is_list(mounts) or not all(isinstance(one, HostMount) for one in cast("Iterable[object]", mounts)):
        raise ValueError(f"container.host_mounts must be HostMounts, not {mounts!r}")


def _check_tier(tier: object) -> None:
    if tier not in MEMORY_TIERS:
        raise ValueError(f"container.memory_limit must be one of {', '.join(MEMORY_TIERS)}, not {tier!r}")


def _check_policy(policy: Mapping[str, Any] | None) -> None:
    if policy is None:
        return
    kind = policy.get("type") if isinstance(policy, Mapping) else None  # pyright: ignore[reportUnnecessaryIsInstance] - not everybody checks types
    if not isinstance(kind, str) or kind not in _POLICIES or policy.keys() - _POLICIES[kind]:
        raise ValueError(
            "container.network_policy must be {'type': 'disabled'} or {'type': 'allowlist', 'allowed_domains': […]}, "
            f"not {policy!r}"
        )
    if kind == "allowlist" and not (_is_list(policy.get("allowed_domains")) and policy["allowed_domains"]):
        raise ValueError("container.network_policy.allowed_domains must be a list that names at least one domain")


def _first_hint(function: Callable[..., Any] | None) -> Any:  # noqa: ANN401 - any type form, or None
    """What the first parameter is annotated as; None where that cannot be told."""
    if function is None:
        return None
    first = next(iter(inspect.signature(function).parameters), "")
    return _hints(function).get(first)


def _returned(function: Callable[..., Any] | None) -> Any:  # noqa: ANN401 - the same
    """What kind of `ToolResult` is annotated to be returned."""
    return next(iter(get_args(_hints(function).get("return"))), None) if function else None


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError):  # annotated with what only a type checker sees
        return {}
