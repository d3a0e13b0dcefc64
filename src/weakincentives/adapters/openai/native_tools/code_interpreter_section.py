"""Code interpreter: the provider runs Python that the model wrote, in a container."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from weakincentives.adapters.openai.native_tools.capability import (
    Capability,
    ConfigError,
    NativeSection,
    Ran,
    Reading,
    Scene,
    failure,
)
from weakincentives.adapters.openai.native_tools.code_interpreter_tool import (
    CodeInterpreterCall,
    CodeInterpreterConfig,
    CodeInterpreterResult,
    container_of,
    plain_container,
)
from weakincentives.adapters.openai.wire import Wire, call_id_of, objects_in, text_in
from weakincentives.prompt import ToolResult

# What Python and IPython print of an exception: a heading, frames, and flush left at the end its name and message.
_HEADING = "Traceback (most recent call last)"
_FRAME = ("Cell In[", "Input In", "File ", "---")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(: .*|:)?")
_SYNTAX = re.compile(r"(Syntax|Indentation|Tab)Error: .*")


class CodeInterpreter(Capability):
    """`code_interpreter` on the wire."""

    name = "code_interpreter"
    items = frozenset({"code_interpreter_call"})
    config_type = CodeInterpreterConfig
    fields = ("container", "allowed_callers")
    includes = ("code_interpreter_call.outputs",)
    example = Ran(CodeInterpreterCall("1 + 1", "cntr_1"), ToolResult("2", CodeInterpreterResult("1 + 1", "2")))

    def write(self, config: CodeInterpreterConfig) -> Wire:
        try:
            return {"container": plain_container(container_of(config.container))}
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def adopt(self, given: Mapping[str, Any]) -> Wire | None:
        wire = super().adopt(given)
        container: Any = given.get("container", {"type": "auto"})
        return {**(wire or {}), **self.write(CodeInterpreterConfig(container))}

    def container(self, wire: Wire) -> str | None:
        named = wire["container"]
        return named if isinstance(named, str) else None

    def place(self, wire: Wire, container_id: str) -> Wire:
        if (named := self.container(wire)) is not None:
            raise ConfigError(f"container is {named!r}, but a section of the prompt brings one")
        return {**wire, "container": container_id}

    def read(self, item: Wire, scene: Scene, config: object) -> Reading:
        _ = config
        outputs = objects_in(item.get("outputs"), "outputs")
        logs = "\n".join(text_in(one, "logs") for one in outputs if one.get("type") == "logs")
        value = CodeInterpreterResult(
            code=text_in(item, "code"),
            logs=logs,
            images=tuple(text_in(one, "url") for one in outputs if one.get("type") == "image"),
            files=scene.files.get(call_id_of(item), ()),
            container_id=item.get("container_id"),
            status=text_in(item, "status") or "completed",
            stdout=item.get("stdout"),
            stderr=item.get("stderr"),
            exit_code=item.get("exit_code"),
        )
        broken = None if logs else failure(item, value=value)
        good = value.status == "completed" and not value.exit_code and not ends_in_traceback(logs)
        result = broken or ToolResult(logs, value, success=good)
        return Ran(CodeInterpreterCall(value.code, value.container_id), result)


def ends_in_traceback(logs: str) -> bool:
    """Whether the last thing that code printed is an exception that nobody caught. The API has no other sign of one.

    A traceback that was printed on purpose, with more text after it, is none.
    """
    lines = logs.rstrip().split("\n")
    if _SYNTAX.fullmatch(lines[-1]):
        return any(line.lstrip().startswith(_FRAME) for line in lines[:-1])
    headings = [at for at, line in enumerate(lines) if _HEADING in line]
    if not headings:
        return False
    rest = [line for line in lines[headings[-1] + 1 :] if line.strip()]
    flush_left = [line for line in rest if not line[0].isspace() and not line.startswith(_FRAME)]
    if not flush_left:  # a group of exceptions is drawn as a tree, all of it indented
        return bool(rest) and rest[-1].lstrip().startswith("+--")
    return flush_left == [lines[-1]] and _EXCEPTION.fullmatch(lines[-1].rstrip()) is not None


CAPABILITY = CodeInterpreter()


class OpenAICodeInterpreterSection(NativeSection[CodeInterpreterConfig]):
    """Lets the model run Python in a container of the provider's."""

    capability = CAPABILITY

    def __init__(self, *, default_params: CodeInterpreterConfig | None = None) -> None:
        super().__init__(
            title="Code interpreter",
            key="openai_code_interpreter",
            default_params=default_params or CodeInterpreterConfig(),
            accepts_overrides=False,
        )
