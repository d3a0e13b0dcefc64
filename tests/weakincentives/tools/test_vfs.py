from __future__ import annotations

from pathlib import Path

from weakincentives.filesystem import Filesystem, HostFilesystem, InMemoryFilesystem
from weakincentives.prompt import Prompt
from weakincentives.resources import ResourceRegistry
from weakincentives.runtime import Session, ToolInvoked
from weakincentives.testing import ScriptedAdapter, call, calls, say
from weakincentives.tools import VfsToolsSection, file_tools


def prompt(section: VfsToolsSection) -> Prompt[str]:
    return Prompt[str](ns="n", key="k", sections=[section])


def test_section_text_describes_the_tools():
    rendered = prompt(VfsToolsSection(filesystem=InMemoryFilesystem())).render()

    assert [tool.name for tool in rendered.tools] == [
        "ls",
        "read_file",
        "write_file",
        "edit_file",
        "glob",
        "grep",
        "rm",
    ]
    assert rendered.text.startswith("## 1. Files (files)\n\nYou work on files through tools.")
    for tool in rendered.tools:
        spec = tool.spec()
        assert spec.strict
        assert all("description" in node for node in spec.parameters["properties"].values()), tool.name
        assert f"`{tool.name}`" in rendered.text
    assert rendered.tools[1].description == f"Read a text file, {file_tools.MAX_LINES} lines at a time."


def test_model_edits_files(tmp_path: Path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "app.py").write_text("print('helo')\n")
    session = Session()
    adapter = ScriptedAdapter(
        [
            call("grep", pattern="helo"),
            call("edit_file", path="src/app.py", old="helo", new="hello"),
            calls(("write_file", {"path": "notes/done.md", "content": "Fixed."}), ("ls", {"path": "notes"})),
            say("Fixed it."),
        ]
    )
    adapter.evaluate(prompt(VfsToolsSection(filesystem=HostFilesystem(tmp_path))), session=session)

    assert (tmp_path / "src" / "app.py").read_text() == "print('hello')\n"
    assert (tmp_path / "notes" / "done.md").read_text() == "Fixed."
    assert [event.rendered_output for event in session[ToolInvoked].all()] == [
        "src/app.py:1: print('helo')",
        "Replaced 1 in src/app.py.",
        "Wrote notes/done.md (6 bytes).",
        "done.md",
    ]


def test_default_filesystem_is_that_of_the_evaluation():
    files = InMemoryFilesystem()
    adapter = ScriptedAdapter([call("write_file", path="a", content="x"), say("ok")])
    adapter.evaluate(
        prompt(VfsToolsSection()), session=Session(), resources=ResourceRegistry.build({Filesystem: files})
    )

    assert files.read_text("a") == "x"


def test_falsy_filesystem_is_used():
    class Sized(InMemoryFilesystem):
        def __len__(self) -> int:
            return len(self.list_dir())

    own, other = Sized(), InMemoryFilesystem()
    section = VfsToolsSection(filesystem=own)
    assert prompt(section).resources().get(Filesystem) is own

    adapter = ScriptedAdapter([call("write_file", path="a", content="x"), say("ok")])
    adapter.evaluate(prompt(section), session=Session(), resources=ResourceRegistry.build({Filesystem: other}))
    assert (own.list_dir(), other.list_dir()) == (["a"], [])


def test_missing_filesystem_is_a_failed_result():
    session = Session()
    ScriptedAdapter([call("ls"), say("ok")]).evaluate(prompt(VfsToolsSection()), session=session)

    (event,) = session[ToolInvoked].all()
    assert not event.success
    assert "no resource of type Filesystem" in event.rendered_output


def test_other_tools_use_the_same_filesystem():
    files = InMemoryFilesystem()
    section = VfsToolsSection(filesystem=files)

    assert prompt(section).resources().get(Filesystem) is files


def test_clone_with_another_filesystem():
    one, other = InMemoryFilesystem(), InMemoryFilesystem()
    section = VfsToolsSection(filesystem=one).clone(filesystem=other, key="other")
    adapter = ScriptedAdapter([call("write_file", path="a", content="x"), say("ok")])
    adapter.evaluate(prompt(section), session=Session())

    assert (one.exists("a"), other.exists("a")) == (False, True)
