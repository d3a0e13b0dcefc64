"""Apply patch: the model writes diffs in a form of the provider's, and we apply them to the session's files."""

from __future__ import annotations

from dataclasses import dataclass

from weakincentives.adapters.openai.native_tools.capability import (
    Capability,
    ConfigError,
    LeftToUs,
    NativeSection,
    Ran,
    Reading,
    Scene,
)
from weakincentives.adapters.openai.native_tools.v4a import Patched, PatchError, create, update
from weakincentives.adapters.openai.wire import Wire, as_object, call_id_of, text_in
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
    """There is nothing to configure: the files are those of the evaluation."""


@dataclass(frozen=True, slots=True)
class ApplyPatchCall:
    """One operation on one file: `create_file`, `update_file` or `delete_file`, which has no diff."""

    operation: str = "update_file"
    path: str = ""
    diff: str = ""


@dataclass(frozen=True, slots=True)
class ApplyPatchResult:
    """What was done."""

    operation: str = "update_file"
    path: str = ""
    added: int = 0
    removed: int = 0

    def render(self) -> str:
        """In words."""
        done = {"create_file": "Created", "update_file": "Updated", "delete_file": "Deleted"}[self.operation]
        counts = "" if self.operation == "delete_file" else f" (+{self.added} -{self.removed} lines)"
        return f"{done} {self.path}{counts}."


class ApplyPatch(Capability):
    """`apply_patch` on the wire."""

    name = "apply_patch"
    items = frozenset({"apply_patch_call"})
    config_type = ApplyPatchConfig
    fields = ("allowed_callers",)
    example = Ran(
        ApplyPatchCall("update_file", "src/app.py", "@@\n-old\n+new"),
        ToolResult("", ApplyPatchResult("update_file", "src/app.py", 1, 1)),
    )

    def write(self, config: ApplyPatchConfig) -> Wire:
        _ = config
        return {}

    def check_resources(self, wire: Wire, config: object, resources: ResourceRegistry) -> None:
        _ = wire, config
        if Filesystem not in resources:
            raise ConfigError(_NO_FILES)

    def read(self, item: Wire, scene: Scene, config: object) -> Reading:
        _ = scene, config
        operation = as_object(item.get("operation") or {}, "operation")
        call = ApplyPatchCall(text_in(operation, "type"), text_in(operation, "path"), text_in(operation, "diff"))
        call_id = call_id_of(item)

        def answer(output: ToolOutput) -> Wire:
            status = "completed" if output.success else "failed"
            return {"type": "apply_patch_call_output", "call_id": call_id, "status": status, "output": output.text}

        return LeftToUs(call, lambda context: apply(call, context), answer)


def apply(call: ApplyPatchCall, context: ToolContext) -> ToolResult[ApplyPatchResult]:
    """Do all of it, or nothing and say why: the new content is known before the one write."""
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
            done = create(call.diff)
            files.write_text(call.path, done.text)
        case "update_file":
            done = update(files.read_text(call.path), call.diff)
            files.write_text(call.path, done.text)
        case "delete_file":
            if files.is_dir(call.path):
                raise PatchError("this is a directory; only files can be deleted")
            files.delete(call.path)
            done = Patched("", 0, 0)
        case _:
            raise PatchError(f"{call.operation!r} is no operation; use create_file, update_file or delete_file")
    return ApplyPatchResult(call.operation, call.path, done.added, done.removed)


CAPABILITY = ApplyPatch()


class OpenAIApplyPatchSection(NativeSection[ApplyPatchConfig]):
    """Lets the model change files by diffs. They are applied here, to the evaluation's `Filesystem`."""

    capability = CAPABILITY

    def __init__(self, *, default_params: ApplyPatchConfig | None = None) -> None:
        super().__init__(
            title="Apply patch",
            key="openai_apply_patch",
            default_params=default_params or ApplyPatchConfig(),
            accepts_overrides=False,
        )
