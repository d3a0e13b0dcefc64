"""Code interpreter (`code_interpreter`): the provider runs Python of the model in a container."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from weakincentives.adapters.openai.native_tools.capability import (
    Capability,
    NativeSection,
    ParsedCall,
    ProviderRan,
    ResponseContext,
    ToolConfigError,
    check_container_is_open,
    failed_result,
)
from weakincentives.adapters.openai.native_tools.code_interpreter_tool import (
    CodeInterpreterCall,
    CodeInterpreterConfig,
    CodeInterpreterResult,
    container_param,
    parse_container,
)
from weakincentives.adapters.openai.wire import Wire, as_object, as_objects, get_call_id, get_str
from weakincentives.prompt import ToolResult

_RESULT_FIELD = "antwort:result"

# The traceback of Python and IPython: a heading, frames, and at the end, without indent, the exception and its message.
_HEADING = "Traceback (most recent call last)"
_FRAME_PREFIXES = ("Cell In[", "Input In", "File ", "---")
_EXCEPTION_RE = re.compile(r"[A-Za-z_][\w.]*(: .*|:)?")
_SYNTAX_ERROR_RE = re.compile(r"(Syntax|Indentation|Tab)Error: .*")


class CodeInterpreter(Capability):
    """`code_interpreter` on the wire."""

    name = "code_interpreter"
    runs_in_container = True
    items = frozenset({"code_interpreter_call"})
    config_type = CodeInterpreterConfig
    fields = ("container", "allowed_callers")
    includes = ("code_interpreter_call.outputs",)
    extension_includes = ("antwort:code_interpreter_call.result",)
    example = ProviderRan(CodeInterpreterCall("1 + 1", "cntr_1"), ToolResult("2", CodeInterpreterResult("1 + 1", "2")))

    def declaration_fields(self, config: CodeInterpreterConfig) -> Wire:
        try:
            return {"container": container_param(parse_container(config.container))}
        except ValueError as error:
            raise ToolConfigError(str(error)) from error

    def check_declaration(self, given: Mapping[str, Any]) -> Wire | None:
        wire = super().check_declaration(given)
        container: Any = given.get("container", {"type": "auto"})
        return {**(wire or {}), **self.declaration_fields(CodeInterpreterConfig(container))}

    def container_id(self, wire: Wire) -> str | None:
        named = wire["container"]
        return named if isinstance(named, str) else None

    def needs_container(self, wire: Wire) -> bool:
        check_container_is_open(self.container_id(wire))
        return True

    def with_container(self, wire: Wire, container_id: str) -> Wire:
        return {**wire, "container": container_id}

    def parse_call(self, item: Wire, response: ResponseContext, config: object) -> ParsedCall:
        _ = config
        outputs = as_objects(item.get("outputs"), "outputs")
        result = as_object(item.get(_RESULT_FIELD) or {}, _RESULT_FIELD)
        logs = "\n".join(get_str(one, "logs") for one in outputs if one.get("type") == "logs")
        value = CodeInterpreterResult(
            code=get_str(item, "code"),
            logs=logs,
            images=tuple(get_str(one, "url") for one in outputs if one.get("type") == "image"),
            files=response.files.get(get_call_id(item), ()),
            container_id=item.get("container_id"),
            status=get_str(item, "status") or "completed",
            stdout=result.get("stdout"),
            stderr=result.get("stderr"),
            exit_code=result.get("exit_code"),
        )
        failed = None if logs else failed_result(item, value=value)
        is_success = value.status == "completed" and not value.exit_code and not ends_in_traceback(logs)
        return ProviderRan(
            CodeInterpreterCall(value.code, value.container_id), failed or ToolResult(logs, value, success=is_success)
        )


def ends_in_traceback(logs: str) -> bool:
    """Whether the logs end in the traceback of an uncaught exception. The API has no other sign of one.

    A traceback with more text after it was printed on purpose, and does not count.
    """
    lines = logs.rstrip().split("\n")
    if _SYNTAX_ERROR_RE.fullmatch(lines[-1]):
        return any(line.lstrip().startswith(_FRAME_PREFIXES) for line in lines[:-1])
    headings = [at for at, line in enumerate(lines) if _HEADING in line]
    if not headings:
        return False
    rest = [line for line in lines[headings[-1] + 1 :] if line.strip()]
    unindented = [line for line in rest if not line[0].isspace() and not line.startswith(_FRAME_PREFIXES)]
    if not unindented:  # an exception group is printed as a tree, all of it indented
        return bool(rest) and rest[-1].lstrip().startswith("+--")
    return unindented == [lines[-1]] and _EXCEPTION_RE.fullmatch(lines[-1].rstrip()) is not None


CAPABILITY = CodeInterpreter()


class OpenAICodeInterpreterSection(NativeSection[CodeInterpreterConfig]):
    """Lets the model run Python in a container of the provider."""

    capability = CAPABILITY
