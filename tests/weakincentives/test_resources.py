from __future__ import annotations

from typing import Protocol

import pytest

from weakincentives.errors import ResourceError
from weakincentives.filesystem import Filesystem
from weakincentives.resources import ResourceRegistry, Snapshotable


class Database:
    pass


class Cache(Database):
    """A resource that can be rolled back."""

    def snapshot(self) -> object:
        return None

    def restore(self, snapshot: object, /) -> None:
        pass


class Mailer(Protocol):
    def send(self) -> None: ...


class Outbox:
    def send(self) -> None: ...


def test_get_by_type():
    database = Database()
    registry = ResourceRegistry.build({Database: database})

    assert registry.get(Database) is database
    assert Database in registry
    assert list(registry) == [Database]
    assert len(registry) == 1
    assert repr(registry) == "ResourceRegistry(Database)"


def test_missing_resource_error_lists_registered_types():
    registry = ResourceRegistry.build({Database: Database(), str: "x"})

    with pytest.raises(ResourceError, match=r"no resource of type Cache; .*\(registered: Database, str\)"):
        registry.get(Cache)
    with pytest.raises(ResourceError, match=r"\(registered: none\)"):
        ResourceRegistry().get(Cache)


def test_get_with_default_none():
    assert ResourceRegistry().get(Database, None) is None


def test_falsy_resource():
    assert ResourceRegistry.build({str: ""}).get(str, "default") == ""


def test_instance_of_another_type_is_rejected():
    with pytest.raises(ResourceError, match="registered as Database is a str"):
        ResourceRegistry.build({Database: "not one"})


def test_base_class_and_protocol_as_keys():
    cache, outbox = Cache(), Outbox()
    registry = ResourceRegistry.build({Database: cache, Mailer: outbox})

    assert registry.get(Database) is cache
    assert Mailer in registry


def test_registry_copies_its_mapping():
    entries: dict[type, object] = {str: "a"}
    registry = ResourceRegistry.build(entries)
    entries[int] = 1

    assert int not in registry


def test_merge_prefers_the_argument_and_changes_neither():
    first, second = ResourceRegistry.build({str: "first", int: 1}), ResourceRegistry.build({str: "second"})

    merged = first.merge(second)

    assert (merged.get(str), merged.get(int)) == ("second", 1)
    assert (first.get(str), len(second)) == ("first", 1)


def test_snapshotables_are_distinct():
    cache = Cache()
    registry = ResourceRegistry.build({Database: cache, Cache: cache, str: "plain"})

    assert registry.snapshotables() == (cache,)
    assert isinstance(cache, Snapshotable)


def test_wrapper_with_getattr_is_snapshotable():
    class Wrapper:
        def __init__(self, inner: object) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> object:
            return getattr(self._inner, name)

    class Inner:
        def snapshot(self) -> object:
            return None

        def restore(self, snapshot: object, /) -> None:
            pass

    wrapper = Wrapper(Inner())

    assert ResourceRegistry({Wrapper: wrapper}).snapshotables() == (wrapper,)


def test_runtime_protocols_are_checked():
    with pytest.raises(ResourceError, match="registered as Filesystem is a str"):
        ResourceRegistry.build({Filesystem: "not one"})
