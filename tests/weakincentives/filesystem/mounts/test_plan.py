from __future__ import annotations

import contextlib
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from weakincentives.errors import WorkspaceBudgetError, WorkspaceError, WorkspaceSecurityError
from weakincentives.filesystem import HostMount
from weakincentives.filesystem.mounts import plan as mount_plan
from weakincentives.filesystem.mounts.plan import AllowedRoots, check_mounts, plan_mounts

# The files of a typical repository.
REPOSITORY = (
    ".git/config",
    ".git/objects/ab/cd",
    "README.md",
    "__pycache__/top.pyc",
    "build/out.o",
    "docs/build/page.html",
    "docs/index.md",
    "node_modules/pkg/index.js",
    "src/app.py",
    "src/app.pyc",
    "src/lib/__pycache__/deep/x.txt",
    "src/lib/util.py",
    "vendor/sub/.git/config",
    "vendor/sub/code.py",
)


def fill(root: Path, *paths: str, content: str = "x"):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)


@pytest.fixture
def host(tmp_path):
    (tmp_path / "allowed").mkdir()
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_text("secret")
    return tmp_path / "allowed"


def plan(*mounts, roots):
    with ExitStack() as stack:
        return plan_mounts(mounts, AllowedRoots(roots, stack))


def entries(mount, *roots):
    (planned,) = plan(mount, roots=roots)
    return [file.entry for file in planned.files]


# ── Patterns ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "pattern, gone",
    [
        (".git/*", [".git/config", ".git/objects/ab/cd", "vendor/sub/.git/config"]),
        (".git", [".git/config", ".git/objects/ab/cd", "vendor/sub/.git/config"]),
        ("/.git/", [".git/config", ".git/objects/ab/cd"]),
        ("**/__pycache__/**", ["__pycache__/top.pyc", "src/lib/__pycache__/deep/x.txt"]),
        ("__pycache__/*", ["__pycache__/top.pyc", "src/lib/__pycache__/deep/x.txt"]),
        ("__pycache__", ["__pycache__/top.pyc", "src/lib/__pycache__/deep/x.txt"]),
        ("*.pyc", ["__pycache__/top.pyc", "src/app.pyc"]),
        ("node_modules/*", ["node_modules/pkg/index.js"]),
        ("build/", ["build/out.o", "docs/build/page.html"]),
        ("/build/", ["build/out.o"]),
        ("./build", ["build/out.o"]),
        ("src/lib", ["src/lib/__pycache__/deep/x.txt", "src/lib/util.py"]),
        ("src/*.py", ["src/app.py"]),
        ("*.PY", []),
        ("*", list(REPOSITORY)),
        ("**", list(REPOSITORY)),
    ],
)
def test_exclude_patterns(host, pattern, gone):
    fill(host / "repo", *REPOSITORY)

    left = entries(HostMount("repo", exclude_glob=(pattern,)), host)
    assert left == [path for path in REPOSITORY if path not in gone]


@pytest.mark.parametrize(
    "pattern, expected",
    [
        ("*.py", ["src/app.py", "src/lib/util.py", "vendor/sub/code.py"]),
        ("/*.md", ["README.md"]),
        ("*.md", ["README.md", "docs/index.md"]),
        ("docs/", ["docs/build/page.html", "docs/index.md"]),
        ("src/**/*.py", ["src/app.py", "src/lib/util.py"]),
        ("nothing", []),
    ],
)
def test_include_patterns(host, pattern, expected):
    fill(host / "repo", *REPOSITORY)

    assert entries(HostMount("repo", include_glob=(pattern,)), host) == expected


def test_exclude_takes_precedence(host):
    fill(host / "repo", *REPOSITORY)

    mount = HostMount("repo", include_glob=("*.py", "*.md"), exclude_glob=("vendor/*", "**/lib/**"))
    assert entries(mount, host) == ["README.md", "docs/index.md", "src/app.py"]


def test_negated_exclude_pattern(host):
    fill(host / "repo", "a.log", "keep.log", "#notes", "!odd")

    assert entries(HostMount("repo", exclude_glob=("*.log", "!keep.log")), host) == ["!odd", "#notes", "keep.log"]
    assert entries(HostMount("repo", exclude_glob=("#*", "\\!*")), host) == ["a.log", "keep.log"]


@pytest.mark.parametrize("pattern", ["[", "a[b", "[z-a]", "back\\"])
def test_invalid_pattern_is_rejected(host, pattern):
    fill(host / "repo", "a")

    with pytest.raises(WorkspaceError, match="invalid glob"):
        entries(HostMount("repo", include_glob=("a", pattern)), host)


def test_excluded_directories_are_not_listed(host, unprivileged):
    fill(host / "repo", "a", "locked/b")
    (host / "repo/locked").chmod(0)
    try:
        assert entries(HostMount("repo", exclude_glob=("locked/",)), host) == ["a"]
        with pytest.raises(WorkspaceError, match=r"cannot read '.*/locked': Permission denied; exclude it"):
            entries(HostMount("repo"), host)
    finally:
        (host / "repo/locked").chmod(0o700)


def test_patterns_do_not_apply_to_a_single_file_mount(host):
    fill(host, "a.csv")

    (planned,) = plan(HostMount("a.csv", "data/b.csv", exclude_glob=("*.csv",)), roots=[host])
    assert [(file.entry, file.target) for file in planned.files] == [("b.csv", ("data", "b.csv"))]
    assert not planned.is_directory
    with pytest.raises(WorkspaceError, match="mount_path must include its name"):
        plan(HostMount("a.csv", "."), roots=[host])


# ── Allowed roots ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_empty_roots_allow_no_mount(host):
    with pytest.raises(WorkspaceSecurityError, match="allowed_host_roots is empty"):
        plan(HostMount(str(host)), roots=[])


def test_single_path_as_roots_is_rejected(host):
    with pytest.raises(WorkspaceSecurityError, match="must be a list of directories, not a single path"):
        plan(HostMount("/etc/passwd"), roots=str(host))


@pytest.mark.parametrize("path", ["../secret", "../secret/key", "repo/../../secret", "/", "/etc/passwd", "../nothing"])
def test_path_outside_of_the_roots_is_rejected_whether_it_exists_or_not(host, path, monkeypatch):
    monkeypatch.chdir(host)
    fill(host / "repo", "a")

    with pytest.raises(WorkspaceSecurityError, match="outside of the allowed host roots"):
        plan(HostMount(path, "x"), roots=[host])


def test_sibling_with_the_same_prefix_is_outside(host):
    fill(host.parent / "allowed-not", "a")

    with pytest.raises(WorkspaceSecurityError):
        plan(HostMount(str(host.parent / "allowed-not")), roots=[host])


def test_host_path_that_is_a_link_is_checked_by_its_target(host):
    fill(host / "v1", "a")
    (host / "latest").symlink_to("v1")
    (host / "leak").symlink_to("../secret")

    (planned,) = plan(HostMount("latest"), roots=[host])
    assert (planned.mount_path, planned.resolved) == ("latest", host / "v1")
    with pytest.raises(WorkspaceSecurityError, match="outside"):
        plan(HostMount("leak"), roots=[host])


def test_relative_paths_are_resolved_in_roots_then_working_directory(host, monkeypatch):
    fill(host / "one", "first/a")
    fill(host / "two", "second/b", "sub/third/c")
    roots = [host / "one", host / "two", host / "missing"]
    monkeypatch.chdir(host / "two/sub")

    assert entries(HostMount("first"), *roots) == ["a"]
    assert entries(HostMount("second"), *roots) == ["b"]
    assert entries(HostMount("third"), *roots) == ["c"]
    assert entries(HostMount("../second"), *roots) == ["b"]
    with pytest.raises(WorkspaceError, match="'fourth' does not exist in the allowed host roots"):
        entries(HostMount("fourth"), *roots)


def test_root_may_be_a_link_or_a_single_file(host):
    fill(host, "dir/a", "dir/b")
    (host.parent / "alias").symlink_to("allowed/dir")

    assert entries(HostMount(str(host / "dir")), host.parent / "alias") == ["a", "b"]
    assert entries(HostMount(str(host / "dir/a")), host / "dir/a") == ["a"]
    assert entries(HostMount("a"), host / "dir/a") == ["a"]
    with pytest.raises(WorkspaceSecurityError):
        entries(HostMount(str(host / "dir/b")), host / "dir/a")


def test_default_mount_path_is_the_name_of_host_path(host, monkeypatch):
    fill(host / "repo", "a")
    monkeypatch.chdir(host / "repo")

    for path in ("repo", "./repo/", str(host / "repo"), "../allowed/repo"):
        (planned,) = plan(HostMount(path), roots=[host])
        assert planned.mount_path == "repo"
    (planned,) = plan(HostMount("."), roots=[host / "repo"])
    assert planned.mount_path == "repo"
    with pytest.raises(WorkspaceError, match="set mount_path"):
        plan(HostMount("/"), roots=["/"])


# ── Links and special files ───────────────────────────────────────────────────────────────────────────────────────────


def test_links_are_skipped_by_default(host):
    fill(host / "repo", "a")
    (host / "repo/file").symlink_to("../../secret/key")
    (host / "repo/dir").symlink_to("../../secret")
    (host / "repo/inside").symlink_to("a")
    (host / "repo/nowhere").symlink_to("nothing")

    assert entries(HostMount("repo"), host) == ["a"]


def test_followed_links_keep_their_own_name(host):
    fill(host / "repo", "a", "sub/b")
    fill(host / "shared", "c", "d.log")
    (host / "repo/file").symlink_to("../shared/c")
    (host / "repo/dir").symlink_to(host / "shared")
    (host / "repo/sub/twice").symlink_to("../file")
    (host / "repo/nowhere").symlink_to("nothing")
    (host / "repo/itself").symlink_to("itself")

    mount = HostMount("repo", exclude_glob=("*.log",), follow_symlinks=True)
    assert entries(mount, host) == ["a", "dir/c", "file", "sub/b", "sub/twice"]


@pytest.mark.parametrize("target", ["../../secret", "../../secret/key", "../../nothing", "/etc"])
def test_followed_link_to_outside_is_rejected(host, target):
    fill(host / "repo", "a")
    (host / "repo/link").symlink_to(target)

    with pytest.raises(
        WorkspaceSecurityError, match=r"/link' is a symbolic link to '.*outside of the allowed host roots"
    ):
        entries(HostMount("repo", follow_symlinks=True), host)
    assert entries(HostMount("repo", follow_symlinks=True, exclude_glob="link"), host) == ["a"]


def test_circular_links_are_skipped(host):
    fill(host / "repo", "a", "one/b", "two/c")
    (host / "repo/one/up").symlink_to("..")
    (host / "repo/one/other").symlink_to("../two")
    (host / "repo/two/other").symlink_to("../one")
    (host / "repo/self").symlink_to(".")

    assert entries(HostMount("repo", follow_symlinks=True), host) == [
        "a",
        "one/b",
        "one/other/c",
        "two/c",
        "two/other/b",
    ]


def test_number_of_files_is_limited(host, monkeypatch):
    monkeypatch.setattr(mount_plan, "MAX_FILES", 50)
    for number in range(8):
        fill(host / "repo", f"{number}/file")
        for other in range(8):
            (host / f"repo/{number}/to{other}").symlink_to(f"../{other}")

    with pytest.raises(WorkspaceBudgetError, match="more than 50 files"):
        entries(HostMount("repo", follow_symlinks=True), host)


def test_special_files_are_skipped_and_cannot_be_mounted(host):
    fill(host / "repo", "a")
    os.mkfifo(host / "repo/fifo")

    assert entries(HostMount("repo"), host) == ["a"]
    with pytest.raises(WorkspaceError, match="is a FIFO"):
        entries(HostMount("repo/fifo"), host)


def test_name_that_is_invalid_in_a_workspace_is_rejected(host):
    fill(host / "repo", "a", "back\\slash")

    with pytest.raises(WorkspaceError, match="rename or exclude it"):
        entries(HostMount("repo"), host)
    assert entries(HostMount("repo", exclude_glob="back*"), host) == ["a"]


def test_unreadable_file_is_named(host, unprivileged):
    fill(host / "repo", "a", "private")
    (host / "repo/private").chmod(0)

    with pytest.raises(WorkspaceError, match=r"cannot read '.*/private': Permission denied"):
        entries(HostMount("repo"), host)


# ── Budgets and overlaps ──────────────────────────────────────────────────────────────────────────────────────────────


def test_budget_error_names_limit_total_and_largest_files(host):
    for number in range(8):
        fill(host / "repo", f"file{number}", content="x" * number * 1000)

    with pytest.raises(WorkspaceBudgetError) as caught:
        entries(HostMount("repo", max_bytes=27_999), host)
    message = str(caught.value)
    assert "28,000 bytes" in message
    assert "max_bytes of 27,999" in message
    assert "file7 (7,000), file6 (6,000), file5 (5,000)" in message
    assert "file1" not in message

    assert len(entries(HostMount("repo", max_bytes=28_000), host)) == 8
    assert len(entries(HostMount("repo", max_bytes=1_000, include_glob="*[01]"), host)) == 2


def test_budget_applies_per_mount(host):
    fill(host, "a/x", "b/x", content="12345")

    assert len(plan(HostMount("a", max_bytes=5), HostMount("b", max_bytes=5), roots=[host])) == 2
    with pytest.raises(WorkspaceBudgetError, match="'b' holds 5 bytes"):
        plan(HostMount("a", max_bytes=5), HostMount("b", max_bytes=4), roots=[host])


@pytest.mark.parametrize(
    "first, second, clash",
    [
        (("one", "x"), ("two", "x"), True),
        (("one", "x"), ("one", "x"), True),
        (("one", "."), ("two", "."), True),
        (("one", "."), ("two", "sub"), True),
        (("one", "."), ("two", "sub/a"), True),
        (("one", "."), ("two", "file"), True),
        (("one", "."), ("two", "file/below"), True),
        (("one", "."), ("two", "sub/new"), False),
        (("one", "x"), ("two", "x/sub"), True),
        (("one", "x"), ("two", "x/other"), False),
        (("one", "x/y"), ("two", "x/z"), False),
        (("one", "x"), ("two", "xx"), False),
        (("one/file", "x"), ("two", "x"), True),
        (("one/file", "x"), ("two", "x/y"), True),
        (("one/file", "x/file"), ("two", "y"), False),
    ],
)
def test_overlapping_mounts_are_rejected(host, first, second, clash):
    fill(host, "one/file", "one/sub/a", "two/b")
    mounts = [HostMount(*first), HostMount(*second)]

    for order in (mounts, mounts[::-1]):
        with pytest.raises(WorkspaceError, match="both write to") if clash else contextlib.nullcontext():
            plan(*order, roots=[host])


def test_check_mounts_rejects_paths_outside_of_the_roots(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "root/link").symlink_to("/etc")
    check_mounts([HostMount(tmp_path / "root/not/there"), HostMount("relative")], [tmp_path / "root"])
    check_mounts([], [])
    for mount in (HostMount("/etc"), HostMount(tmp_path / "root/../x"), HostMount(tmp_path / "root/link/passwd")):
        with pytest.raises(WorkspaceSecurityError, match="outside"):
            check_mounts([mount], [tmp_path / "root"])
    with pytest.raises(WorkspaceSecurityError, match="empty"):
        check_mounts([HostMount(tmp_path)], [])
