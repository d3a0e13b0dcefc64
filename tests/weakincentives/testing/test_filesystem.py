from __future__ import annotations

import unittest
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weakincentives.errors import WinkError
from weakincentives.filesystem import Filesystem, HostFilesystem, InMemoryFilesystem
from weakincentives.filesystem.openat import default_opener, open_by_components, open_with_openat2
from weakincentives.testing.filesystem import FilesystemConformance, tree


class TestInMemoryFilesystem(FilesystemConformance):
    def make(self):
        return InMemoryFilesystem()


@pytest.mark.parametrize("opener", [open_by_components, open_with_openat2], indirect=True)
class TestHostFilesystem(FilesystemConformance):
    @pytest.fixture(autouse=True)
    def opener(self, request, tmp_path_factory):
        if request.param is open_with_openat2 and default_opener() is not open_with_openat2:
            pytest.skip("this kernel has no openat2")
        self._opener = request.param
        self._factory = tmp_path_factory

    def make(self):
        return HostFilesystem(self._factory.mktemp("root"), opener=self._opener)


class WithoutSnapshots:
    """A filesystem without snapshots."""

    def __init__(self):
        self._files = InMemoryFilesystem()

    def __getattr__(self, name):
        if name in {"snapshot", "restore"}:
            raise AttributeError(name)
        return getattr(self._files, name)


class TestWithoutSnapshots(FilesystemConformance):
    snapshots = False

    def make(self):
        return cast("Filesystem", WithoutSnapshots())


class RestoreDoesNothing(InMemoryFilesystem):
    def restore(self, snapshot, /):
        pass


def outcomes(make):
    class Case(FilesystemConformance, unittest.TestCase):
        def make(self):
            return make()

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Case).run(result)
    return result


def test_suite_runs_under_unittest():
    result = outcomes(InMemoryFilesystem)

    assert result.wasSuccessful()
    assert result.testsRun > 25


def test_suite_detects_a_wrong_implementation():
    failed = {case.id().rpartition(".")[2] for case, _ in outcomes(RestoreDoesNothing).failures}

    assert failed >= {"test_restore_undoes_all_changes", "test_snapshots_are_independent"}


def test_missing_snapshots_fail_unless_disabled():
    messages = [message for _, message in outcomes(WithoutSnapshots).failures]

    assert any("snapshots = False" in message for message in messages)


def test_make_must_be_implemented():
    with pytest.raises(NotImplementedError, match="define make"):
        FilesystemConformance().make()


# ── Property: host and memory behave alike ────────────────────────────────────────────────────────────────────────────

names = st.sampled_from(["a", "b", "c"])
paths = st.lists(names, min_size=1, max_size=3).map("/".join) | st.sampled_from([".", "", "a/../b", "./a//b", "../a"])
operations = st.one_of(
    st.tuples(st.just("write_bytes"), paths, st.binary(max_size=3)),
    st.tuples(st.sampled_from(["read_bytes", "list_dir", "mkdir", "delete", "exists", "is_file", "is_dir"]), paths),
    st.tuples(st.just("delete tree"), paths),
    st.tuples(st.just("snapshot")),
    st.tuples(st.just("restore"), st.integers(0, 5)),
    st.tuples(st.just("forget"), st.integers(0, 5)),
)


class OperationRunner:
    """Applies operations to a filesystem and returns their results."""

    def __init__(self, files):
        self._files = files
        self._snapshots = []

    def run(self, name, *arguments):
        try:
            return self._run(name, *arguments)
        except WinkError as error:
            return type(error)

    def _run(self, name, *arguments):
        if name == "snapshot":
            self._snapshots.append(self._files.snapshot())
            return None
        if name in {"restore", "forget"}:
            if not self._snapshots:
                return None
            index = arguments[0] % len(self._snapshots)
            return (
                self._files.restore(self._snapshots[index])
                if name == "restore"
                else self._snapshots.pop(index) and None
            )
        if name == "delete tree":
            return self._files.delete(*arguments, recursive=True)
        return getattr(self._files, name)(*arguments)


@given(st.lists(operations, max_size=30))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
def test_host_and_memory_behave_alike(tmp_path_factory, opener, steps):
    memory = InMemoryFilesystem()
    host = HostFilesystem(tmp_path_factory.mktemp("root"), opener=opener)
    runners = OperationRunner(memory), OperationRunner(host)

    for step in steps:
        first, second = (runner.run(*step) for runner in runners)
        assert first == second, step
        assert tree(memory) == tree(host), step
