"""`apply_patch`: a function for patches in the V4A format, and the items of its calls. Pure."""

from __future__ import annotations

from typing import Any, Final, get_args

from msgspec import Struct

from antwort.api.ids import new_id
from antwort.engine.ports import FunctionSpec, Progress
from antwort.tools.client_run.arguments import InvalidArguments, convert, read_object
from antwort.tools.client_run.prepared import ItemOfCall, deltas, parameters
from antwort.tools.client_run.v4a import BadPatch, OperationType, read_operation

_DIFF: Final = "response.apply_patch_call_operation_diff"

_DESCRIPTION: Final = """\
Create, update or delete one file of the workspace. Make one call for each file; several calls in one answer are \
possible. The patch is applied after your answer, and you then get its result.

diff of `create_file`: the whole content, with + before every line, also before an empty one.
diff of `update_file`: only the places that change, without line numbers. Each place is a hunk: a line @@, then \
unchanged lines with a space before them, removed lines with - and added lines with +. Give three unchanged lines \
before and after a change, copied exactly from the file. If they occur several times, name the enclosing class or \
function in the @@ line. After a hunk at the end of the file you may write *** End of File.
`delete_file` has no diff.

Example of an update:
@@ class Counter:
     def add(self, step):
-        self.value += 1
+        self.value += step
         return self.value
"""

SPEC: Final = FunctionSpec(
    "apply_patch",
    _DESCRIPTION,
    parameters(
        ["type", "path"],
        type={"type": "string", "enum": list(get_args(OperationType))},
        path={"type": "string", "description": "The file, relative to the workspace."},
        diff={"type": "string", "description": "The diff, in the format above."},
    ),
)


class _PatchArguments(Struct):
    type: str | None = None
    path: str | None = None
    diff: str | None = None


def read_call(call_id: str, written: str) -> ItemOfCall:
    """The item of a call. `InvalidArguments` names what is broken in the diff."""
    fields = read_object(written)
    given = convert(_flat(fields), _PatchArguments)
    try:
        operation = read_operation(given.type, given.path, given.diff)
    except BadPatch as error:
        raise InvalidArguments(f"the patch is broken: {error}") from error
    item: dict[str, Any] = {
        "id": new_id("apc_"),
        "type": "apply_patch_call",
        "status": "in_progress",
        "call_id": call_id,
    }
    begun = {"type": operation.type, "path": operation.path}
    if operation.diff is None:
        done, events = begun, list[Progress]()
    else:
        begun, done = ({"type": operation.type, "diff": diff, "path": operation.path} for diff in ("", operation.diff))
        events = [Progress(f"{_DIFF}.delta", {"delta": delta}) for delta in deltas(operation.diff)]
        events.append(Progress(f"{_DIFF}.done", {"diff": operation.diff}))
    return ItemOfCall({**item, "operation": begun}, {**item, "status": "completed", "operation": done}, events)


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    """The arguments where a model wrote the operation as one object, or only a patch, as other versions of the tool."""
    operation: object = fields.get("operation")
    if isinstance(operation, dict):
        return operation  # pyright: ignore[reportUnknownVariableType] - any JSON
    patch = next((fields[name] for name in ("diff", "patch", "input") if fields.get(name) is not None), None)
    return {**fields, "diff": patch}
