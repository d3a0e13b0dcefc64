"""`OpenAICodeInterpreterTool`: code interpreter, the configuration of its container, calls and results. No I/O.

A container has one of three forms: a new one (`AutoContainerConfig`), an existing one (`ExistingContainerRef`), or a
mapping in wire form. `parse_container` checks it when a request is built, so that an error names the prompt.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar, cast, get_args, get_type_hints

from weakincentives.adapters.openai import sdk_hints
from weakincentives.adapters.openai.file_types import REFUSE_UNSUPPORTED, FileTypes
from weakincentives.errors import PromptValidationError, WorkspaceError
from weakincentives.filesystem import HostMount
from weakincentives.prompt import ProviderTool, ToolContext, ToolExample, ToolHandler, ToolResult

P = TypeVar("P")
R = TypeVar("R")

MEMORY_TIERS = ("1g", "4g", "16g", "64g")
MAX_FILES = 50

_DEFAULT_DESCRIPTION = "Executes Python that the model wrote, in a sandboxed container."

_POLICIES = {"disabled": {"type"}, "allowlist": {"type", "allowed_domains", "domain_secrets"}}
_AUTO_FIELDS = ("type", "memory_limit", "file_ids", "network_policy", "host_mounts")
_REF_FIELDS = ("id", "memory_limit")


@dataclass(frozen=True, kw_only=True)
class AutoContainerConfig:
    """A new container, or the one that the conversation already uses.

    `file_ids` are uploaded files. `host_mounts` are host files; they are uploaded before the first request, and the
    uploads are deleted when the evaluation ends. `network_policy` is in wire form; without it there is no network.
    """

    memory_limit: str = "1g"
    file_ids: tuple[str, ...] = ()
    network_policy: Mapping[str, Any] | None = field(default=None, hash=False, repr=False)  # may hold secrets
    host_mounts: tuple[HostMount, ...] = ()


@dataclass(frozen=True)
class ExistingContainerRef:
    """An existing container. Its memory was set when it was created; `memory_limit` here is documentation."""

    id: str
    memory_limit: str | None = None


ContainerLike: TypeAlias = AutoContainerConfig | ExistingContainerRef | Mapping[str, Any] | str


@dataclass(frozen=True)
class CodeInterpreterConfig:
    """Configuration of code interpreter. Host mounts must be below `allowed_host_roots`, and need at least one.

    `file_types` are the types that host mounts may have; None accepts all types.
    """

    container: ContainerLike = field(default_factory=AutoContainerConfig, hash=False)
    allowed_host_roots: tuple[str | os.PathLike[str], ...] = ()
    file_types: FileTypes | None = REFUSE_UNSUPPORTED


@dataclass(frozen=True)
class CodeInterpreterCall:
    """The code that the model ran, and its container."""

    code: str = ""
    container_id: str | None = None


@dataclass(frozen=True)
class ContainerFile:
    """A file in a container, by its ids."""

    container_id: str
    file_id: str
    filename: str


@dataclass(frozen=True)
class CodeInterpreterResult:
    """The result of a call. `files` are those that messages cite afterwards; `images` are URLs, mostly data URLs.

    `stdout`, `stderr` and `exit_code` are None if the provider does not report them, as OpenAI does not.
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
        """The logs; without logs, the images and files."""
        created = [f"{len(self.images)} image(s)"] if self.images else []
        created += [file.filename for file in self.files]
        return self.logs or (f"(no text; made: {', '.join(created)})" if created else "(no output)")


@dataclass(frozen=True, kw_only=True, init=False)
class OpenAICodeInterpreterTool(ProviderTool[P, R, CodeInterpreterConfig], Generic[P, R]):
    """Code interpreter with a chosen container and a hook for its results.

    `handle_provider_output` gets a `CodeInterpreterResult`; a hook annotated with `dict` gets a dictionary, with the
    logs as `output_text`. The property `container` is the container in wire form.
    """

    provider: str = field(default="openai", init=False)
    capability: str = field(default="code_interpreter", init=False)

    def __init__(
        self,
        *,
        name: str = "code_interpreter",
        description: str = _DEFAULT_DESCRIPTION,
        container: ContainerLike | None = None,
        allowed_host_roots: Sequence[str | os.PathLike[str]] = (),
        file_types: FileTypes | None = REFUSE_UNSUPPORTED,
        handle_provider_output: Callable[[R, ToolContext], ToolResult[R]] | None = None,
        handler: ToolHandler[P, R] | None = None,
        examples: Sequence[ToolExample[P, R]] = (),
        accepts_overrides: bool = False,
        config: CodeInterpreterConfig | None = None,
    ) -> None:
        if config is not None and (container is not None or allowed_host_roots or file_types is not REFUSE_UNSUPPORTED):
            raise PromptValidationError("give config, or container, allowed_host_roots and file_types, not both")
        chosen = AutoContainerConfig() if container is None else container
        super().__init__(
            name=name,
            description=description,
            handler=handler,
            examples=examples,
            accepts_overrides=accepts_overrides,
            provider="openai",
            capability="code_interpreter",
            config=config or CodeInterpreterConfig(chosen, _check_roots(allowed_host_roots), file_types),
            handle_provider_output=handle_provider_output,
        )

    @property
    def container(self) -> Any:  # noqa: ANN401 - a string or a dictionary, ready for any client's `tools=`
        """The container in wire form. It has no host mounts: their files must be uploaded first.

        This is for requests with the SDK alone, so it also installs the errors of `sdk_hints`.
        """
        sdk_hints.install()
        return container_param(self.config.container)

    def prompt_text(self) -> str:
        """Description and examples; empty for the default description, which tells the model nothing new."""
        is_default = self.description == _DEFAULT_DESCRIPTION and not self.examples
        return "" if is_default else super().prompt_text()

    def _types(self) -> tuple[Any, Any]:
        if self.type_arguments:
            return self.type_arguments[0], self.type_arguments[1]
        result = _first_hint(self.handle_provider_output) or _result_hint(self.handler)
        return _first_hint(self.handler) or CodeInterpreterCall, result or CodeInterpreterResult


def _check_roots(given: Sequence[str | os.PathLike[str]]) -> tuple[str | os.PathLike[str], ...]:
    """Refuse a single path: as a sequence it is its characters, and the first one, `/`, would allow everything."""
    if not _is_list(given):
        raise PromptValidationError(f"allowed_host_roots must be a list of directories, not {given!r}")
    return tuple(given)


def parse_container(given: ContainerLike) -> AutoContainerConfig | ExistingContainerRef:
    """Check a container in any of its forms; a `ValueError` names the field and the allowed values."""
    container = given if isinstance(given, AutoContainerConfig | ExistingContainerRef) else _from_wire(given)
    if isinstance(container, ExistingContainerRef):
        if not isinstance(container.id, str) or not container.id.strip():  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not check types
            raise ValueError(f"container.id must be the id of a container, such as 'cntr_…', not {container.id!r}")
        if container.memory_limit is not None:
            _check_tier(container.memory_limit)
        return container
    _check_tier(container.memory_limit)
    _check_policy(container.network_policy)
    _check_mounts(container.host_mounts)
    if not _is_list(container.file_ids) or not all(isinstance(one, str) and one for one in container.file_ids):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not check types
        raise ValueError(f"container.file_ids must be ids of uploaded files, not {container.file_ids!r}")
    if len(container.file_ids) > MAX_FILES:
        raise ValueError(f"container.file_ids may name at most {MAX_FILES} files, not {len(container.file_ids)}")
    return container


def container_param(given: ContainerLike, file_ids: Iterable[str] = ()) -> str | dict[str, Any]:
    """A container in wire form, with additional files; unchecked, and without host mounts."""
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


def _from_wire(given: Mapping[str, Any] | str) -> AutoContainerConfig | ExistingContainerRef:
    if isinstance(given, str):
        return ExistingContainerRef(given)
    if not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not check types
        raise ValueError(f"container must be an id, an AutoContainerConfig or an ExistingContainerRef, not {given!r}")  # noqa: TRY004 - all errors here are ValueError
    by_id = "id" in given and given.get("type") is None
    fields = _REF_FIELDS if by_id else _AUTO_FIELDS
    if unknown := sorted(given.keys() - set(fields)):
        raise ValueError(f"container.{unknown[0]} is not known; allowed are: {', '.join(fields)}")
    if by_id:
        return ExistingContainerRef(given["id"], given.get("memory_limit"))
    if given.get("type") != "auto":
        raise ValueError(f"container needs type 'auto' or the id of a container, and has {dict(given)!r}")
    tier = given.get("memory_limit")
    return AutoContainerConfig(
        memory_limit="1g" if tier is None else tier,
        file_ids=_list_field(given, "file_ids"),
        network_policy=given.get("network_policy"),
        host_mounts=tuple(map(_mount, _list_field(given, "host_mounts"))),
    )


def _list_field(given: Mapping[str, Any], name: str) -> tuple[Any, ...]:
    value = given.get(name)
    if value is None:
        return ()
    if not _is_list(value):
        raise ValueError(f"container.{name} must be a list, not {value!r}")
    return tuple(value)


def _is_list(value: object) -> bool:
    """Whether a value is a list or another iterable, but neither a string nor a mapping."""
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)


def _mount(given: HostMount | Mapping[str, Any]) -> HostMount:
    if isinstance(given, HostMount):
        return given
    try:
        return HostMount(**given)
    except (TypeError, WorkspaceError) as error:
        raise ValueError(f"container.host_mounts has {given!r}, which is not a HostMount: {error}") from error


def _check_mounts(mounts: object) -> None:
    if not _is_list(mounts) or not all(isinstance(one, HostMount) for one in cast("Iterable[object]", mounts)):
        raise ValueError(f"container.host_mounts must be HostMounts, not {mounts!r}")


def _check_tier(tier: object) -> None:
    if tier not in MEMORY_TIERS:
        raise ValueError(f"container.memory_limit must be one of {', '.join(MEMORY_TIERS)}, not {tier!r}")


def _check_policy(policy: Mapping[str, Any] | None) -> None:
    if policy is None:
        return
    kind = policy.get("type") if isinstance(policy, Mapping) else None  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not check types
    if not isinstance(kind, str) or kind not in _POLICIES or policy.keys() - _POLICIES[kind]:
        raise ValueError(
            "container.network_policy must be {'type': 'disabled'} or {'type': 'allowlist', 'allowed_domains': […]}, "
            f"not {policy!r}"
        )
    if kind == "allowlist" and not (_is_list(policy.get("allowed_domains")) and policy["allowed_domains"]):
        raise ValueError("container.network_policy.allowed_domains must be a list that names at least one domain")


def _first_hint(function: Callable[..., Any] | None) -> Any:  # noqa: ANN401 - any type form, or None
    """The annotation of the first parameter; None if it cannot be resolved."""
    if function is None:
        return None
    first = next(iter(inspect.signature(function).parameters), "")
    return _hints(function).get(first)


def _result_hint(function: Callable[..., Any] | None) -> Any:  # noqa: ANN401 - any type form, or None
    """The type argument of the annotated `ToolResult`."""
    return next(iter(get_args(_hints(function).get("return"))), None) if function else None


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError):  # annotated with a name that exists for type checkers only
        return {}
