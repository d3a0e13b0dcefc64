from __future__ import annotations

import pytest

from weakincentives.adapters.claude_agent_sdk import ClaudeAgentWorkspaceSection
from weakincentives.errors import WorkspaceError, WorkspaceSecurityError
from weakincentives.filesystem import Filesystem, HostFilesystem
from weakincentives.prompt import Prompt
from weakincentives.runtime import Session
from weakincentives.tools import HostMount


@pytest.fixture
def project(tmp_path):
    for name in ("src/a.py", "src/b.pyc", ".git/x"):
        (tmp_path / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / name).write_text(name)
    return tmp_path / "project"


@pytest.fixture
def workspace(project):
    mount = HostMount(project, mount_path="code", exclude_glob=("*.pyc", ".git/*"), max_bytes=1000)
    with ClaudeAgentWorkspaceSection(
        session=Session(), mounts=(mount,), allowed_host_roots=(project.parent,)
    ) as section:
        yield section


def test_rendering_lists_the_files_and_copies_nothing(workspace):
    text = Prompt(ns="n", key="k", sections=[workspace]).render().text

    assert "`./code`: 1 file, 8 bytes\n```\nsrc/\n  a.py\n```" in text
    assert workspace.mount_previews[0].entries == ("src/a.py",)
    assert not workspace._files.is_copied


def test_files_are_copies_and_removed_by_cleanup(workspace, project):
    files = workspace.filesystem
    assert isinstance(files, HostFilesystem)
    assert workspace.resources().get(Filesystem) is files
    files.write_text("code/src/a.py", "changed")
    assert (workspace.temp_dir / "code/src/a.py").read_text() == "changed"
    assert (project / "src/a.py").read_text() == "src/a.py"

    for _ in range(2):
        workspace.cleanup()
    assert not workspace.temp_dir.exists()


def test_workspace_that_was_cleaned_up_is_not_used(workspace):
    workspace.cleanup()
    with pytest.raises(WorkspaceError, match="cleaned up"):
        _ = workspace.filesystem


def test_mounts_outside_the_roots_are_refused(project):
    with pytest.raises(WorkspaceSecurityError):
        ClaudeAgentWorkspaceSection(session=Session(), mounts=(HostMount(project),))


def test_directory_of_the_cli_is_removed_unless_it_was_mounted(workspace, project):
    workspace.remove_cli_directory()  # before the files are copied
    (workspace.filesystem.root / ".claude/x").mkdir(parents=True)
    workspace.remove_cli_directory()
    assert workspace.filesystem.list_dir() == ["code"]

    (project / ".claude").mkdir()
    (project / ".claude/settings.json").write_text("{}")
    with workspace.clone(mounts=(HostMount(project, mount_path="."),)) as other:
        assert other.filesystem.exists(".claude/settings.json")
        other.remove_cli_directory()
        assert other.filesystem.exists(".claude/settings.json")


def test_clone_is_a_separate_workspace(workspace):
    clone = workspace.clone(title="Files")

    assert (clone.title, clone.key, clone.mounts) == ("Files", "workspace", workspace.mounts)
    assert clone.temp_dir != workspace.temp_dir
    clone.cleanup()
