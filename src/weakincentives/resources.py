"""Things that tools need and the prompt does not know: databases, clients, filesystems."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Protocol, TypeVar, cast, overload, runtime_checkable

from weakincentives.errors import ResourceError

T = TypeVar("T")
D = TypeVar("D")


@runtime_checkable
class Snapshotable(Protocol):
    """A resource that a failed tool call is rolled back on."""

    def snapshot(self) -> object:
        """The present state, cheap to take and to drop."""
        ...

    def restore(self, snapshot: object, /) -> None:
        """Go back to a state that `snapshot` returned."""
        ...


class ResourceRegistry:
    """An immutable map from a type to its one instance.

    >>> registry = ResourceRegistry.build({str: "hello"})
    >>> registry.get(str), int in registry, registry.get(int, None)
    ('hello', False, None)
    """

    __slots__ = ("_entries",)

    def __init__(self, entries: Mapping[type, object] | None = None) -> None:
        self._entries: Mapping[type, object] = MappingProxyType(dict(entries or {}))

    @classmethod
    def build(cls, entries: Mapping[type, object]) -> ResourceRegistry:
        """A registry of these; each instance must be what it is registered as."""
        for key, instance in entries.items():
            can_be_asked = not getattr(key, "_is_protocol", False) or getattr(key, "_is_runtime_protocol", False)
            if can_be_asked and not isinstance(instance, key):
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
        """The instance registered as `key`; without a default, a missing one is an error."""
        if key in self._entries:
            return cast("T", self._entries[key])
        if default:
            return default[0]
        known = ", ".join(sorted(known.__name__ for known in self._entries)) or "none"
        raise ResourceError(
            f"no resource of type {key.__name__}; pass it with evaluate(resources=…) (registered: {known})"
        )

    def merge(self, other: ResourceRegistry) -> ResourceRegistry:
        """Both together; where both have a type, `other` wins."""
        return ResourceRegistry({**self._entries, **other._entries})

    def snapshotables(self) -> tuple[Snapshotable, ...]:
        """Each distinct resource that can be rolled back."""
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
    """Asked by attribute: since Python 3.12, `isinstance` with a protocol no longer sees what `__getattr__` lends."""
    return callable(getattr(instance, "snapshot", None)) and callable(getattr(instance, "restore", None))
