from __future__ import annotations

import os
import shutil
import stat
import time

import pytest

from weakincentives.errors import WorkspaceBudgetError, WorkspaceError, WorkspaceSecurityError
from weakincentives.filesystem import HostMount, HostMountPreview, materialize
from weakincentives.filesystem.mounts import copy as mount_copy


@pytest.fixture
def host(tmp_path):
    (tmp_path / "host/repo/src").mkdir(parents=True)
    (tmp_path / "host/repo/README.md").write_text("read me")
    (tmp_path / "host/repo/src/app.py").write_text("print()")
    (tmp_path / "secret").write_text("secret")
    return tmp_path / "host"


@pytest.fixture
def workspace(tmp_path):
    return tmp_path / "workspace"


def contents(directory):
    return {
        str(path.relative_to(directory)): path.read_text() for path in sorted(directory.rglob("*")) if path.is_file()
    }


def test_files_are_copied_and_previewed(host, workspace):
    previews = materialize(
        [HostMount("repo", "project"), HostMount(str(host / "repo/README.md"), "notes/intro.md", max_bytes=7)],
        allowed_host_roots=(host,),
        destination=workspace,
    )

    assert contents(workspace) == {
        "notes/intro.md": "read me",
        "project/README.md": "read me",
        "project/src/app.py": "print()",
    }
    assert previews == (
        HostMountPreview("repo", host / "repo", "project", ("README.md", "src/app.py"), True, 14),
        HostMountPreview(
            str(host / "repo/README.md"), host / "repo/README.md", "notes/intro.md", ("intro.md",), False, 7
        ),
    )
    assert type(previews[0].mount_path) is str


def test_mount_at_the_root_of_the_workspace(host, workspace):
    materialize([HostMount("repo", ".")], allowed_host_roots=[host], destination=workspace)

    assert contents(workspace) == {"README.md": "read me", "src/app.py": "print()"}


def test_existing_file_in_the_workspace_is_named_in_the_error(host, workspace):
    workspace.mkdir()
    (workspace / "file").write_text("mine")

    with pytest.raises(WorkspaceError, match="cannot create 'file/repo' in the workspace"):
        materialize([HostMount("repo", "file/repo")], allowed_host_roots=[host], destination=workspace)
    with pytest.raises(WorkspaceError, match=r"cannot use .* as a workspace"):
        materialize([HostMount("repo")], allowed_host_roots=[host], destination=workspace / "file")
    assert contents(workspace) == {"file": "mine"}


def test_empty_mounts_need_no_roots(workspace):
    assert materialize([], allowed_host_roots=[], destination=workspace) == ()


def test_modes_and_times_are_kept_without_setuid(host, workspace):
    (host / "repo/README.md").chmod(0o444)
    (host / "repo/src/app.py").chmod(0o4755)
    os.utime(host / "repo/src/app.py", (1_000_000, 1_000_000))
    before = os.umask(0o022)
    try:
        materialize([HostMount("repo", ".")], allowed_host_roots=[host], destination=workspace)
    finally:
        os.umask(before)

    assert stat.S_IMODE((workspace / "README.md").stat().st_mode) == 0o644
    assert stat.S_IMODE((workspace / "src/app.py").stat().st_mode) == 0o755
    assert (workspace / "src/app.py").stat().st_mtime == 1_000_000


def test_links_are_copied_only_with_follow_symlinks(host, workspace):
    (host / "repo/leak").symlink_to("../../secret")
    (host / "repo/same").symlink_to("README.md")

    materialize(
        [HostMount("repo", "plain"), HostMount("repo", "followed", exclude_glob="leak", follow_symlinks=True)],
        allowed_host_roots=[host],
        destination=workspace,
    )
    assert not {"plain/leak", "plain/same"} & set(contents(workspace))
    assert contents(workspace)["followed/same"] == "read me"
    assert not (workspace / "followed/same").is_symlink()


@pytest.mark.parametrize(
    "bad, error",
    [
        (HostMount("../secret"), WorkspaceSecurityError),
        (HostMount("repo", "x", max_bytes=3), WorkspaceBudgetError),
        (HostMount("nothing"), WorkspaceError),
        (HostMount("repo", "repo/src"), WorkspaceError),
        (HostMount("leaky", follow_symlinks=True), WorkspaceSecurityError),
    ],
)
def test_invalid_mount_prevents_all_copies(host, workspace, bad, error):
    (host / "leaky").mkdir()
    (host / "leaky/link").symlink_to("../../secret")

    with pytest.raises(error):
        materialize([HostMount("repo"), bad], allowed_host_roots=[host], destination=workspace)
    assert not workspace.exists()


def after_planning(monkeypatch, action):
    """Run an action on the host between planning and copying."""
    plan = mount_copy.plan_mounts

    def plan_then_act(*arguments):
        plans = plan(*arguments)
        action()
        return plans

    monkeypatch.setattr(mount_copy, "plan_mounts", plan_then_act)


def test_growing_file_cannot_exceed_the_budget(host, workspace, monkeypatch):
    after_planning(monkeypatch, lambda: (host / "repo/src/app.py").write_text("x" * 1000))

    with pytest.raises(WorkspaceBudgetError, match=r"app.py' grew to 1,000 bytes"):
        materialize([HostMount("repo", max_bytes=100)], allowed_host_roots=[host], destination=workspace)
    assert list(workspace.iterdir()) == []


def test_file_replaced_by_a_link_is_not_followed(host, workspace, monkeypatch):
    def swap():
        (host / "repo/src/app.py").unlink()
        (host / "repo/src/app.py").symlink_to("../../../secret")

    after_planning(monkeypatch, swap)
    with pytest.raises(WorkspaceError, match="cannot copy"):
        materialize([HostMount("repo")], allowed_host_roots=[host], destination=workspace)
    assert list(workspace.iterdir()) == []


def test_directory_replaced_by_a_link_is_not_followed(host, workspace, monkeypatch):
    def swap():
        (host.parent / "elsewhere").mkdir()
        (host.parent / "elsewhere/app.py").write_text("secret")
        (host / "repo/src").rename(host / "repo/old")
        (host / "repo/src").symlink_to("../../elsewhere")

    after_planning(monkeypatch, swap)
    with pytest.raises(WorkspaceError, match="cannot copy"):
        materialize([HostMount("repo")], allowed_host_roots=[host], destination=workspace)
    assert list(workspace.iterdir()) == []


def test_file_replaced_by_a_fifo_does_not_block(host, workspace, monkeypatch):
    def swap():
        (host / "repo/src/app.py").unlink()
        os.mkfifo(host / "repo/src/app.py")

    after_planning(monkeypatch, swap)
    with pytest.raises(WorkspaceError, match="is no longer a file"):
        materialize([HostMount("repo")], allowed_host_roots=[host], destination=workspace)


def test_existing_files_of_the_workspace_are_not_changed(host, workspace):
    (workspace / "repo/src").mkdir(parents=True)
    (workspace / "repo/src/app.py").write_text("precious")

    with pytest.raises(WorkspaceError, match=r"cannot copy .*: File exists"):
        materialize([HostMount("repo")], allowed_host_roots=[host], destination=workspace)
    assert contents(workspace) == {"repo/src/app.py": "precious"}


def test_link_in_the_workspace_is_not_followed(host, workspace, tmp_path):
    workspace.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (workspace / "repo").symlink_to("../elsewhere")

    with pytest.raises(WorkspaceError):
        materialize([HostMount("repo")], allowed_host_roots=[host], destination=workspace)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_copy_of_many_small_files_is_about_as_fast_as_copytree(host, workspace):
    for number in range(2_000):
        directory = host / f"many/{number % 100}"
        if number < 100:
            directory.mkdir(parents=True)
        (directory / f"{number}.txt").write_bytes(b"x" * 100)
    start = time.process_time()
    shutil.copytree(host / "many", workspace / "plain")
    plain = time.process_time() - start

    start = time.process_time()
    (preview,) = materialize(
        [HostMount("many", exclude_glob=(".git/*", "**/__pycache__/**", "*.pyc"))],
        allowed_host_roots=[host],
        destination=workspace,
    )
    assert preview.bytes_copied == 200_000
    assert time.process_time() - start < 5 * plain + 0.5
