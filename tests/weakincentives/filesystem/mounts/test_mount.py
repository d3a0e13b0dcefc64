from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from weakincentives.errors import WorkspaceError, WorkspaceSecurityError
from weakincentives.filesystem import HostMount, VfsPath


def test_mount_with_a_vfs_path():
    mount = HostMount(
        host_path="sunfish",
        mount_path=VfsPath(("workspace", "sunfish")),
        include_glob=("*.py", "*.md", "*.txt"),
        exclude_glob=("**/__pycache__/**",),
        max_bytes=600_000,
    )

    mount_path = "/" + "/".join(mount.mount_path.segments) if mount.mount_path else "/"
    assert mount_path == "/workspace/sunfish"
    assert mount.mount_path == "workspace/sunfish"
    assert mount.include_glob == ("*.py", "*.md", "*.txt")
    assert mount.follow_symlinks is False


def test_defaults():
    mount = HostMount("repo")

    assert mount == HostMount("repo", None, (), (), None, follow_symlinks=False)
    assert (mount.mount_path, mount.include_glob, mount.exclude_glob, mount.max_bytes) == (None, (), (), None)


def test_accepted_argument_types():
    mount = HostMount(Path("repo"), "/project/", include_glob="*.py", exclude_glob=[".git/*"])

    assert mount.host_path == "repo"
    assert mount.mount_path == VfsPath("project")
    assert mount.include_glob == ("*.py",)
    assert mount.exclude_glob == (".git/*",)


def test_frozen_dataclass_semantics():
    mount = HostMount("repo", "project")

    assert hash(mount) == hash(HostMount("repo", VfsPath("project")))
    assert dataclasses.replace(mount, max_bytes=5) == HostMount("repo", "project", max_bytes=5)
    assert [field.name for field in dataclasses.fields(mount)] == [
        "host_path",
        "mount_path",
        "include_glob",
        "exclude_glob",
        "max_bytes",
        "follow_symlinks",
    ]
    with pytest.raises(dataclasses.FrozenInstanceError):
        mount.max_bytes = 3  # pyright: ignore[reportAttributeAccessIssue] - the point of the test


@pytest.mark.parametrize("path", ["../x", "..", "a/../../x", "a/../b", "/../x", "", "a\\b", "a\0b", "x" * 300])
def test_mount_path_cannot_leave_the_workspace(path):
    with pytest.raises(WorkspaceSecurityError, match="is not a path in the workspace"):
        HostMount("repo", mount_path=path)


@pytest.mark.parametrize(
    "arguments",
    [{"host_path": ""}, {"host_path": "a\0b"}, {"max_bytes": -1}, {"include_glob": ("",)}, {"exclude_glob": ("/",)}],
)
def test_invalid_arguments_are_rejected(arguments):
    with pytest.raises(WorkspaceError):
        HostMount(**{"host_path": "repo", **arguments})
