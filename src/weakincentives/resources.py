"""`ResourceRegistry`: dependency injection for tools, such as databases, clients and filesystems."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Protocol, TypeVar, cast, overload, runtime_checkable

from weakincentives.errors import ResourceError

T = TypeVar("T")
D = TypeVar("D")


@runtime_checkable
class Snapshotable(Protocol):
    """A resource that is rolled back after a failed tool call."""

    def snapshot(self) -> object:
        """The current state; must be cheap to take and to discard."""
        ...

    def restore(self, snapshot: object, /) -> None:
        """Roll back to a state that `snapshot` returned."""
        ...


class ResourceRegistry:
    """An immutable map from a type to its instance.

    >>> registry = ResourceRegistry.build({str: "hello"})
    >>> registry.get(str), int in registry, registry.get(int, None)
    ('hello', False, None)
    """

    __slots__ = ("_entries",)

    def __init__(self, entries: Mapping[type, object] | None = None) -> None:
        self._entries: Mapping[type, object] = MappingProxyType(dict(entries or {}))

    @classmethod
    def build(cls, entries: Mapping[type, object]) -> ResourceRegistry:
        """Create a registry; each instance must be an instance of the type that it is registered as."""
        for key, instance in entries.items():
            is_checkable = not getattr(key, "_is_protocol", False) or getattr(key, "_is_runtime_protocol", False)
            if is_checkable and not isinstance(instance, key):
                raise ResourceError(
                    f"resource registered as {key.__name__} is a {type(instance).__name__}; "
                    f"register it under a type that it is an instance of"
                )
        return cls(entries)

    @overload
    def get(self, key: type[T], /) -> T: ...
    @overload
    def get(self, key: type[T], default: D, /) -> T | D: ...
    def get(self, key: type[T], /, *default: D) -> T | D:
        """The instance registered as `key`; if it is missing, the default, or an error without one."""
        if key in self._entries:
            return cast("T", self._entries[key])
        if default:
            return default[0]
        known = ", ".join(sorted(known.__name__ for known in self._entries)) or "none"
        raise ResourceError(
            f"no resource of type {key.__name__}; pass it with evaluate(resources=…) (registered: {known})"
        )

    def merge(self, other: ResourceRegistry) -> ResourceRegistry:
        """The union of both; for types in both, `other` takes precedence."""
        return ResourceRegistry({**self._entries, **other._entries})

    def snapshotables(self) -> tuple[Snapshotable, ...]:
        """The distinct resources that are `Snapshotable`."""
        distinct = {id(instance): instance for instance in self._entries.values()}
        return tuple(cast("Snapshotable", instance) for instance in distinct.values() if _is_snapshotable(instance))

    def __contains__(self, key: type) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[type]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"ResourceRegistry({', '.join(key.__name__ for key in self._entries)})"


def _is_snapshotable(instance: object) -> bool:
    """By attribute: since Python 3.12, `isinstance` with a protocol ignores attributes from `__getattr__`."""
    return callable(getattr(instance, "snapshot", None)) and callable(getattr(instance, "restore", None))
