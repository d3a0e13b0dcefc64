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


def test_a_resource_is_found_by_its_type():
    database = Database()
    registry = ResourceRegistry.build({Database: database})

    assert registry.get(Database) is database
    assert Database in registry
    assert list(registry) == [Database]
    assert len(registry) == 1
    assert repr(registry) == "ResourceRegistry(Database)"


def test_a_missing_resource_is_an_error_that_says_what_there_is():
    registry = ResourceRegistry.build({Database: Database(), str: "x"})

    with pytest.raises(ResourceError, match=r"no resource of type Cache; .*\(registered: Database, str\)"):
        registry.get(Cache)
    with pytest.raises(ResourceError, match=r"\(registered: none\)"):
        ResourceRegistry().get(Cache)


def test_a_default_stands_in_even_when_it_is_none():
    assert ResourceRegistry().get(Database, None) is None


def test_a_falsy_resource_is_still_a_resource():
    assert ResourceRegistry.build({str: ""}).get(str, "default") == ""


def test_what_is_registered_as_something_else_is_refused():
    with pytest.raises(ResourceError, match="registered as Database is a str"):
        ResourceRegistry.build({Database: "not one"})


def test_a_subclass_and_a_protocol_are_good_keys():
    cache, outbox = Cache(), Outbox()
    registry = ResourceRegistry.build({Database: cache, Mailer: outbox})

    assert registry.get(Database) is cache
    assert Mailer in registry


def test_the_registry_does_not_follow_the_map_it_was_built_from():
    entries: dict[type, object] = {str: "a"}
    registry = ResourceRegistry.build(entries)
    entries[int] = 1

    assert int not in registry


def test_merging_prefers_the_other_and_leaves_both_alone():
    ours, theirs = ResourceRegistry.build({str: "ours", int: 1}), ResourceRegistry.build({str: "theirs"})

    merged = ours.merge(theirs)

    assert (merged.get(str), merged.get(int)) == ("theirs", 1)
    assert (ours.get(str), len(theirs)) == ("ours", 1)


def test_each_snapshotable_is_listed_once():
    cache = Cache()
    registry = ResourceRegistry.build({Database: cache, Cache: cache, str: "plain"})

    assert registry.snapshotables() == (cache,)
    assert isinstance(cache, Snapshotable)


def test_a_wrapper_that_lends_snapshots_is_rolled_back_too():
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


def test_what_a_protocol_can_be_asked_it_is_asked():
    with pytest.raises(ResourceError, match="registered as Filesystem is a str"):
        ResourceRegistry.build({Filesystem: "not one"})
