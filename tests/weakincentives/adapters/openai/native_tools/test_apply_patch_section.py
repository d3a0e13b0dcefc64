from __future__ import annotations

from typing import Any

import pytest

from weakincentives.adapters.openai import ApplyPatchConfig, OpenAIApplyPatchSection
from weakincentives.adapters.openai.native_tools import ApplyPatchCall, ApplyPatchResult
from weakincentives.adapters.openai.native_tools.apply_patch_section import CAPABILITY, apply
from weakincentives.adapters.openai.native_tools.capability import ClientMustRun, ResponseContext, ToolConfigError
from weakincentives.adapters.turn import ToolOutput
from weakincentives.filesystem import Filesystem, HostFilesystem, InMemoryFilesystem
from weakincentives.prompt import ToolContext
from weakincentives.resources import ResourceRegistry


@pytest.fixture(params=["memory", "host"])
def files(request, tmp_path) -> Filesystem:
    files: Filesystem = InMemoryFilesystem() if request.param == "memory" else HostFilesystem(tmp_path)
    files.write_text("src/app.py", "def main():\n    pass\n")
    files.write_bytes("logo.png", b"\x89PNG\xff")
    return files


def context(files: Filesystem) -> ToolContext:
    unused: Any = None
    return ToolContext(unused, unused, None, unused, resources=ResourceRegistry.build({Filesystem: files}))


def state(files: Filesystem) -> dict[str, bytes]:
    return {path: files.read_bytes(path) for path in files.glob("**")}


def test_files_are_created_updated_and_deleted(files):
    created = apply(ApplyPatchCall("create_file", "docs/a.md", "+Hello"), context(files))
    updated = apply(ApplyPatchCall("update_file", "src/app.py", "-    pass\n+    run()\n+    end()"), context(files))
    deleted = apply(ApplyPatchCall("delete_file", "logo.png"), context(files))

    assert [result.render() for result in (created, updated, deleted)] == [
        "Created docs/a.md (+1 -0 lines).",
        "Updated src/app.py (+2 -1 lines).",
        "Deleted logo.png.",
    ]
    assert updated.value == ApplyPatchResult("update_file", "src/app.py", 2, 1)
    assert state(files) == {"docs/a.md": b"Hello\n", "src/app.py": b"def main():\n    run()\n    end()\n"}


@pytest.mark.parametrize(
    "operation, path, diff, expected",
    [
        ("create_file", "src/app.py", "+x", "exists already; use update_file"),
        ("create_file", "new.py", "x", "every line begins with"),
        ("create_file", "../out.py", "+x", "it leaves the root"),
        ("create_file", "/etc/out.py", "+x", "it is absolute"),
        ("create_file", "src/app.py/x", "+x", "src/app.py"),
        ("update_file", "missing.py", "-x", "missing.py"),
        ("update_file", "src/app.py", "-    pass\n+    run()\n@@\n-    nowhere", "are not in the file"),
        ("update_file", "logo.png", "-x", "is not UTF-8 text"),
        ("update_file", "src", "-x", "src"),
        ("delete_file", "missing.py", "", "missing.py"),
        ("delete_file", "src", "", "only files can be deleted"),
        ("delete_file", ".", "", "only files can be deleted"),
        ("move_file", "src/app.py", "", "is not an operation; use create_file, update_file or delete_file"),
        ("", "", "", "is not an operation"),
    ],
)
def test_failed_patch_changes_nothing_and_names_the_reason(files, operation, path, diff, expected):
    before = state(files)
    result = apply(ApplyPatchCall(operation, path, diff), context(files))

    assert not result.success
    assert expected in result.message
    assert state(files) == before


def test_call_is_run_by_the_client_and_answered_with_status():
    item = {
        "id": "apc_1",
        "type": "apply_patch_call",
        "call_id": "call_1",
        "operation": {"type": "delete_file", "path": "a"},
    }
    reading = CAPABILITY.parse_call(item, ResponseContext(), ApplyPatchConfig())

    assert isinstance(reading, ClientMustRun)
    assert reading.params == ApplyPatchCall("delete_file", "a", "")
    assert reading.undone_on_failure
    assert reading.answer(ToolOutput("call_1", "apply_patch", "Deleted a.", success=True)) == {
        "type": "apply_patch_call_output",
        "call_id": "call_1",
        "status": "completed",
        "output": "Deleted a.",
    }
    assert reading.answer(ToolOutput("call_1", "apply_patch", "No.", success=False))["status"] == "failed"


def test_declaration_has_no_fields_and_needs_a_filesystem():
    assert CAPABILITY.declare(None) == {"type": "apply_patch"}
    assert OpenAIApplyPatchSection().native_tools()[0].config == ApplyPatchConfig()
    CAPABILITY.check_resources({}, None, ResourceRegistry.build({Filesystem: InMemoryFilesystem()}))
    with pytest.raises(ToolConfigError, match="there are no files to patch"):
        CAPABILITY.check_resources({}, None, ResourceRegistry())
