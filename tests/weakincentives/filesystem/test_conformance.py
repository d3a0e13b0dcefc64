from __future__ import annotations

import unittest
from typing import cast

import pytest

from weakincentives.filesystem import Filesystem, HostFilesystem, InMemoryFilesystem
from weakincentives.filesystem.beneath import best_opener, open_in_one_call, open_walking
from weakincentives.filesystem.conformance import FilesystemConformance


class TestInMemoryFilesystem(FilesystemConformance):
    def make(self):
        return InMemoryFilesystem()


@pytest.mark.parametrize("opener", [open_walking, open_in_one_call], indirect=True)
class TestHostFilesystem(FilesystemConformance):
    @pytest.fixture(autouse=True)
    def opener(self, request, tmp_path_factory):
        if request.param is open_in_one_call and best_opener() is not open_in_one_call:
            pytest.skip("this kernel has no openat2")
        self._opener = request.param
        self._factory = tmp_path_factory

    def make(self):
        return HostFilesystem(self._factory.mktemp("root"), opener=self._opener)


class WithoutSnapshots:
    """All of a filesystem, and nothing more."""

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


class Forgetful(InMemoryFilesystem):
    def restore(self, snapshot, /):
        pass


def outcomes(make):
    class Case(FilesystemConformance, unittest.TestCase):
        def make(self):
            return make()

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Case).run(result)
    return result


def test_it_runs_under_unittest_too():
    result = outcomes(InMemoryFilesystem)

    assert result.wasSuccessful()
    assert result.testsRun > 25


def test_it_finds_what_is_wrong():
    failed = {case.id().rpartition(".")[2] for case, _ in outcomes(Forgetful).failures}

    assert failed >= {"test_restore_undoes_everything", "test_snapshots_stand_each_for_itself"}


def test_missing_snapshots_are_a_failure_unless_announced():
    messages = [message for _, message in outcomes(WithoutSnapshots).failures]

    assert any("snapshots = False" in message for message in messages)


def test_a_subclass_must_say_what_it_tests():
    with pytest.raises(NotImplementedError, match="define make"):
        FilesystemConformance().make()
