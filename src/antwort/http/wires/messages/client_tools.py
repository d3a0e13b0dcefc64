"""Tools that a type defines and the client runs: their functions for the model, which has not been trained on them."""

from __future__ import annotations

import re
from typing import Any, Final

from antwort.api.tools import FunctionTool

_VERSION_RE: Final = re.compile(r"_\d{8}$")
_PATH: Final = {"type": "string", "description": "The absolute path of a file or directory."}


def _function(name: str, description: str, required: list[str], **properties: dict[str, Any]) -> FunctionTool:
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return FunctionTool(name=name, description=description, parameters=schema)


_BASH: Final = _function(
    "bash",
    "Run a command in a bash shell that stays open between calls. You get its output. Use `restart` if it hangs.",
    [],
    command={"type": "string", "description": "The command. Required, unless the shell is restarted."},
    restart={"type": "boolean", "description": "Restart the shell instead of running a command."},
)

_TEXT: Final = {"type": "string"}
_LINE_RANGE: Final = {
    "type": "array",
    "items": {"type": "integer"},
    "description": "For `view`: the first and the last line, from 1; -1 is the last line of the file.",
}


def _editor(name: str) -> FunctionTool:
    return _function(
        name,
        "View and edit text files. `view` shows a file with line numbers, or the entries of a directory; `create` "
        "writes a file; `str_replace` replaces one text, which must occur exactly once; `insert` adds a text behind a "
        "line.",
        ["command", "path"],
        command={"type": "string", "enum": ["view", "create", "str_replace", "insert"]},
        path=_PATH,
        file_text={**_TEXT, "description": "For `create`: the content of the file."},
        old_str={**_TEXT, "description": "For `str_replace`: the text to replace, with its white space."},
        new_str={**_TEXT, "description": "For `str_replace`: the text in its place."},
        insert_line={
            "type": "integer",
            "description": "For `insert`: insert behind this line; 0 is the start.",
        },
        insert_text={**_TEXT, "description": "For `insert`: the text to insert."},
        view_range=_LINE_RANGE,
    )


_MEMORY: Final = _function(
    "memory",
    "Keep notes in files below /memories that stay between conversations. View the directory before a task, and write "
    "down what a later conversation needs.",
    ["command"],
    command={"type": "string", "enum": ["view", "create", "str_replace", "insert", "delete", "rename"]},
    path={**_PATH, "description": "The path, such as /memories/notes.md. For all commands but `rename`."},
    file_text={**_TEXT, "description": "For `create`: the content of the file."},
    old_str={**_TEXT, "description": "For `str_replace`: the text to replace."},
    new_str={**_TEXT, "description": "For `str_replace`: the text in its place."},
    insert_line={"type": "integer", "description": "For `insert`: insert behind this line; 0 is the start."},
    insert_text={**_TEXT, "description": "For `insert`: the text to insert."},
    view_range=_LINE_RANGE,
    old_path={**_TEXT, "description": "For `rename`: the path of the file."},
    new_path={**_TEXT, "description": "For `rename`: its new path."},
)

_BY_FAMILY: Final = {
    "bash": {"bash": _BASH},
    "text_editor": {name: _editor(name) for name in ("str_replace_based_edit_tool", "str_replace_editor")},
    "memory": {"memory": _MEMORY},
}


def tool_family(kind: str) -> str:
    """The type of a tool without its version: `bash` for `bash_20250124`."""
    return _VERSION_RE.sub("", kind)


def client_tool(kind: str, name: str | None) -> FunctionTool | None:
    """The function of a tool that the client runs, by its type and name; None for other types and names."""
    named = _BY_FAMILY.get(tool_family(kind), {})
    return named.get(name) if name is not None else next(iter(named.values()), None)
