from __future__ import annotations

from typing import Any, cast

import pytest

from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.prompt import ToolContext, ToolResult
from weakincentives.tools import file_tools
from weakincentives.tools.file_tools import (
    EditParams,
    FileTools,
    GlobParams,
    GrepParams,
    ListParams,
    ReadParams,
    RemoveParams,
    WriteParams,
)

NO_CONTEXT = cast("ToolContext", None)  # the tools have their own filesystem


@pytest.fixture
def files() -> InMemoryFilesystem:
    filesystem = InMemoryFilesystem()
    filesystem.write_text("readme.md", "one\ntwo\nthree\n")
    filesystem.write_text("src/app.py", "import os\nimport sys\n")
    filesystem.write_bytes("logo.png", b"\x89PNG\x00\xff")
    return filesystem


class ToolCaller:
    """Calls a tool handler directly."""

    def __init__(self, files: InMemoryFilesystem) -> None:
        self._tools = FileTools(files)

    def __call__(self, params: object) -> ToolResult[Any]:
        handlers = {tool.params_type: tool.handler for tool in self._tools.tools()}
        handler = handlers[type(params)]
        assert handler is not None
        return handler(params, context=NO_CONTEXT)


@pytest.fixture
def call_tool(files: InMemoryFilesystem) -> ToolCaller:
    return ToolCaller(files)


def test_ls_marks_directories(call_tool: ToolCaller):
    assert call_tool(ListParams()).render() == "logo.png\nreadme.md\nsrc/"
    assert call_tool(ListParams("src/")).render() == "app.py"


def test_ls_of_an_empty_directory(call_tool: ToolCaller, files: InMemoryFilesystem):
    files.mkdir("void")

    assert call_tool(ListParams("void")).render() == "No entries."


def test_read_file_shows_lines_and_the_next_offset(call_tool: ToolCaller):
    assert call_tool(ReadParams("readme.md")).render() == "readme.md, lines 1 to 3 of 3:\none\ntwo\nthree"
    part = call_tool(ReadParams("readme.md", offset=2, limit=1))
    assert part.render() == "readme.md, lines 2 to 2 of 3:\ntwo\n[more: read on with offset=3]"
    assert part.value is not None
    assert part.value.text == "two"


def test_read_file_of_an_empty_file(call_tool: ToolCaller, files: InMemoryFilesystem):
    files.write_text("empty", "")

    assert call_tool(ReadParams("empty")).render() == "empty is empty."


@pytest.mark.parametrize(
    "params, message",
    [
        (ReadParams("readme.md", offset=9), "has only 3 lines"),
        (ReadParams("readme.md", offset=0), "count from 1"),
        (ReadParams("readme.md", limit=-1), "count from 1"),
        (ReadParams("logo.png"), "not UTF-8 text"),
        (ReadParams("missing"), "missing"),
        (ReadParams("../etc/passwd"), "../etc/passwd"),
        (ReadParams("src"), "src"),
        (ListParams("readme.md"), "readme.md"),
        (EditParams("logo.png", "a", "b"), "not UTF-8 text"),
        (EditParams("readme.md", "", "x"), "old is empty"),
        (EditParams("readme.md", "four", "x"), "does not occur"),
        (EditParams("src/app.py", "import", "x"), "occurs 2 times"),
        (WriteParams("readme.md/x", "y"), "readme.md"),
        (GrepParams("("), "not a valid regular expression"),
        (RemoveParams("src"), "src"),
        (RemoveParams("."), "root"),
    ],
    ids=str,
)
def test_failed_calls_have_a_message_and_change_nothing(
    call_tool: ToolCaller, files: InMemoryFilesystem, params: object, message: str
):
    before = {path: files.read_bytes(path) for path in files.glob("**")}
    result = call_tool(params)

    assert not result.success
    assert message in result.message
    assert {path: files.read_bytes(path) for path in files.glob("**")} == before


def test_edit_replaces_a_unique_text_or_all(call_tool: ToolCaller, files: InMemoryFilesystem):
    assert call_tool(EditParams("readme.md", "two", "2")).message == "Replaced 1 in readme.md."
    assert files.read_text("readme.md") == "one\n2\nthree\n"
    assert (
        call_tool(EditParams("src/app.py", "import", "from", replace_all=True)).message == "Replaced 2 in src/app.py."
    )
    assert files.read_text("src/app.py") == "from os\nfrom sys\n"


def test_edit_keeps_line_endings(call_tool: ToolCaller, files: InMemoryFilesystem):
    files.write_text("dos.txt", "a\r\nb\r\n")
    call_tool(EditParams("dos.txt", "a\nb", "a\nnew\nc"))

    assert files.read_bytes("dos.txt") == b"a\r\nnew\r\nc\r\n"


def test_name_with_a_line_break_is_escaped(call_tool: ToolCaller, files: InMemoryFilesystem):
    files.write_text("odd/two\nlines", "")

    assert call_tool(ListParams("odd")).render() == "'two\\nlines'"
    assert call_tool(GlobParams("odd/*")).render() == "'odd/two\\nlines'"


def test_file_above_the_size_limit_is_not_read(call_tool: ToolCaller, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(file_tools, "MAX_FILE_BYTES", 3)

    assert "too many to read" in call_tool(ReadParams("readme.md")).message


def test_rm_deletes_a_file_or_recursively_a_directory(call_tool: ToolCaller, files: InMemoryFilesystem):
    assert call_tool(RemoveParams("readme.md")).render() == "Removed readme.md."
    assert call_tool(RemoveParams("src", recursive=True)).success
    assert files.list_dir() == ["logo.png"]


def test_glob_and_grep_with_and_without_matches(call_tool: ToolCaller):
    assert call_tool(GlobParams("**/*.py")).render() == "src/app.py"
    assert call_tool(GlobParams("*.rs")).render() == "No entries."
    assert call_tool(GrepParams("IMPORT s", glob="*.py", ignore_case=True)).render() == "src/app.py:2: import sys"
    assert call_tool(GrepParams("nowhere")).render() == "No line matches."


def test_long_results_are_truncated(call_tool: ToolCaller, files: InMemoryFilesystem, monkeypatch: pytest.MonkeyPatch):
    for name in ("MAX_ENTRIES", "MAX_MATCHES", "MAX_LINES"):
        monkeypatch.setattr(file_tools, name, 2)
    monkeypatch.setattr(file_tools, "MAX_LINE_CHARACTERS", 4)

    assert call_tool(ListParams()).render() == "logo.png\nreadme.md\n[1 more not shown: narrow the search]"
    assert call_tool(GlobParams("**")).render().endswith("[1 more not shown: narrow the search]")
    files.write_text("long", "xxxxxxx\nx\nx\n")
    assert call_tool(GrepParams("x", "long")).render() == (
        "long:1: xxxx [line cut]\nlong:2: x\n[only the first 2 are shown: narrow the search]"
    )
    assert call_tool(ReadParams("long")).render().endswith("[more: read on with offset=3]")


def test_long_line_is_truncated(call_tool: ToolCaller, files: InMemoryFilesystem, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(file_tools, "MAX_CHARACTERS", 10)
    files.write_text("wide", "y" * 50 + "\nshort\n")
    shown = call_tool(ReadParams("wide")).render()

    assert "yyyyyyyyy [line cut]" in shown
    assert "read on with offset=2" in shown
