from __future__ import annotations

import re
import shutil
from contextlib import closing

import pytest

from antwort.tools.builtins.codeinterpreter.kubernetes import Instance


def name_of(directory):
    """The name that a process has which starts and ends."""
    with closing(Instance(directory)) as instance:
        return instance.name


def test_the_name_is_a_label_and_the_same_after_a_restart(tmp_path):
    assert name_of(tmp_path / "a" / "b") == name_of(tmp_path / "a" / "b")
    assert re.fullmatch("[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?", name_of(tmp_path))


def test_a_server_with_the_same_host_name_and_path_has_another_name(tmp_path):
    """Two pods of StatefulSets with the same name in two namespaces."""
    first = name_of(tmp_path / "state")
    shutil.rmtree(tmp_path / "state")
    assert name_of(tmp_path / "state") != first


def test_a_second_process_with_the_same_directory_has_another_name(tmp_path):
    with closing(Instance(tmp_path)) as first, closing(Instance(tmp_path)) as second:
        assert first.name != second.name
    assert name_of(tmp_path) == first.name


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"\xff"])
def test_a_damaged_file_is_replaced(tmp_path, content):
    (tmp_path / "claims-instance").write_bytes(content)
    assert name_of(tmp_path) == name_of(tmp_path)


def test_without_a_writable_directory_the_name_is_new(tmp_path):
    (tmp_path / "file").touch()
    assert name_of(tmp_path / "file") != name_of(tmp_path / "file")
