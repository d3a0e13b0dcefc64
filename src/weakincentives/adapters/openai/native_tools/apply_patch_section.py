"""Apply patch (`apply_patch`): the client applies V4A diffs of the model to the evaluation's `Filesystem`."""

from __future__ import annotations

from dataclasses import dataclass

from weakincentives.adapters.openai.native_tools.capability import (
    Capability,
    ClientMustRun,
    NativeSection,
    ParsedCall,
    ProviderRan,
    ResponseContext,
    ToolConfigError,
)
from weakincentives.adapters.openai.native_tools.v4a import Patched, PatchError, create, update
from weakincentives.adapters.openai.wire import Wire, as_object, get_call_id, get_str
from weakincentives.adapters.turn import ToolOutput
from weakincentives.errors import FilesystemError
from weakincentives.filesystem import Filesystem
from weakincentives.prompt import ToolContext, ToolResult
from weakincentives.resources import ResourceRegistry

_NO_FILES = (
    "there are no files to patch: give the evaluation a Filesystem, from a section such as VfsToolsSection, "
    "or with evaluate(resources=…)"
)


@dataclass(frozen=True, slots=True)
class ApplyPatchConfig:
    """No options: the files are those of the evaluation."""


@dataclass(frozen=True, slots=True)
class ApplyPatchCall:
    """One operation on one file: `create_file`, `update_file` or `delete_file`, which has no diff."""

    operation: str = "update_file"
    path: str = ""
    diff: str = ""


@dataclass(frozen=True, slots=True)
class ApplyPatchResult:
    """The applied operation, with the number of added and removed lines."""

    operation: str = "update_file"
    path: str = ""
    added: int = 0
    removed: int = 0

    def render(self) -> str:
        """The operation as text."""
        verb = {"create_file": "Created", "update_file": "Updated", "delete_file": "Deleted"}[self.operation]
        counts = "" if self.operation == "delete_file" else f" (+{self.added} -{self.removed} lines)"
        return f"{verb} {self.path}{counts}."


class ApplyPatch(Capability):
    """`apply_patch` on the wire."""

    name = "apply_patch"
    items = frozenset({"apply_patch_call"})
    config_type = ApplyPatchConfig
    fields = ("allowed_callers",)
    example = ProviderRan(
        ApplyPatchCall("update_file", "src/app.py", "@@\n-old\n+new"),
        ToolResult("", ApplyPatchResult("update_file", "src/app.py", 1, 1)),
    )

    def declaration_fields(self, config: ApplyPatchConfig) -> Wire:
        _ = config
        return {}

    def check_resources(self, wire: Wire, config: object, resources: ResourceRegistry) -> None:
        _ = wire, config
        if Filesystem not in resources:
            raise ToolConfigError(_NO_FILES)

    def parse_call(self, item: Wire, response: ResponseContext, config: object) -> ParsedCall:
        _ = response, config
        operation = as_object(item.get("operation") or {}, "operation")
        call = ApplyPatchCall(get_str(operation, "type"), get_str(operation, "path"), get_str(operation, "diff"))
        call_id = get_call_id(item)

        def answer(output: ToolOutput) -> Wire:
            status = "completed" if output.success else "failed"
            return {"type": "apply_patch_call_output", "call_id": call_id, "status": status, "output": output.text}

        return ClientMustRun(call, lambda context: apply(call, context), answer)


def apply(call: ApplyPatchCall, context: ToolContext) -> ToolResult[ApplyPatchResult]:
    """Apply one operation, completely or not at all: the new content is computed before the only write."""
    try:
        return ToolResult.ok(_apply(call, context.filesystem))
    except (PatchError, FilesystemError) as error:
        return ToolResult.error(f"{call.path}: {error}")
    except UnicodeDecodeError:
        return ToolResult.error(f"{call.path} is not UTF-8 text and cannot be patched.")


def _apply(call: ApplyPatchCall, files: Filesystem) -> ApplyPatchResult:
    match call.operation:
        case "create_file":
            if files.exists(call.path):
                raise PatchError("the file exists already; use update_file, or delete it first")
            patched = create(call.diff)
            files.write_text(call.path, patched.text)
        case "update_file":
            patched = update(files.read_text(call.path), call.diff)
            files.write_text(call.path, patched.text)
        case "delete_file":
            if files.is_dir(call.path):
                raise PatchError("this is a directory; only files can be deleted")
            files.delete(call.path)
            patched = Patched("", 0, 0)
        case _:
            raise PatchError(f"{call.operation!r} is not an operation; use create_file, update_file or delete_file")
    return ApplyPatchResult(call.operation, call.path, patched.added, patched.removed)


CAPABILITY = ApplyPatch()


class OpenAIApplyPatchSection(NativeSection[ApplyPatchConfig]):
    """Lets the model change files by diffs, which the client applies to the evaluation's `Filesystem`."""

    capability = CAPABILITY
