"""Computers that the client controls: a function for mouse and keyboard, and the items of its calls. Pure.

The tool `computer` takes several actions in one call, its earlier form `computer_use_preview` one. The client answers
with a screenshot, so the model must read images.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

from msgspec import Meta, Struct

from antwort.api.errors import invalid
from antwort.api.ids import new_id
from antwort.api.tools import ComputerTool, ComputerUsePreviewTool
from antwort.engine.ports import FunctionSpec, PreparedTool, ToolContext
from antwort.tools.client_run.arguments import InvalidArguments, convert, read_object, without_nulls
from antwort.tools.client_run.prepared import ItemOfCall, PreparedClientTool, parameters

MAX_ACTIONS: Final = 32

Coordinate: TypeAlias = Annotated[int, Meta(ge=0, le=65_535)]
Distance: TypeAlias = Annotated[int, Meta(ge=-65_535, le=65_535)]
Keys: TypeAlias = Annotated[list[str], Meta(max_length=16)]
Button: TypeAlias = Literal["left", "right", "wheel", "back", "forward"]


class Point(Struct):
    """A position on the display."""

    x: Coordinate
    y: Coordinate


class _Action(Struct, tag_field="type", kw_only=True):
    pass


class Click(_Action, tag="click"):
    """Press a mouse button, while keys are held."""

    x: Coordinate
    y: Coordinate
    button: Button = "left"
    keys: Keys | None = None


class DoubleClick(_Action, tag="double_click"):
    """Press the left button twice."""

    x: Coordinate
    y: Coordinate
    keys: Keys | None = None


class Drag(_Action, tag="drag"):
    """Move the mouse with the left button held."""

    path: Annotated[list[Point], Meta(min_length=2, max_length=256)]
    keys: Keys | None = None


class Keypress(_Action, tag="keypress"):
    """Press keys together."""

    keys: Annotated[list[str], Meta(min_length=1, max_length=16)]


class Move(_Action, tag="move"):
    """Move the mouse."""

    x: Coordinate
    y: Coordinate
    keys: Keys | None = None


class TakeScreenshot(_Action, tag="screenshot"):
    """Look at the display."""


class Scroll(_Action, tag="scroll"):
    """Turn the mouse wheel."""

    x: Coordinate
    y: Coordinate
    scroll_x: Distance = 0
    scroll_y: Distance = 0
    keys: Keys | None = None


class TypeText(_Action, tag="type"):
    """Type a text."""

    text: str


class Wait(_Action, tag="wait"):
    """Wait a moment."""


Action: TypeAlias = Click | DoubleClick | Drag | Keypress | Move | TakeScreenshot | Scroll | TypeText | Wait


class _ComputerArguments(Struct):
    actions: Annotated[list[Action], Meta(min_length=1, max_length=MAX_ACTIONS)]


_ACTION_HELP: Final = """\
Types of actions and their fields: click (x, y, button: left, right, wheel, back or forward), double_click (x, y), \
drag (path: a list of {x, y}), keypress (keys: pressed together, such as ["CTRL", "C"]), move (x, y), scroll (x, y, \
scroll_x, scroll_y), type (text), wait, screenshot. Coordinates are pixels from the upper left corner; `keys` of a \
mouse action are held meanwhile. You then get a screenshot. Begin with one if you have not seen the display."""

_ACTION: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "enum": sorted(str(kind.__struct_config__.tag) for kind in get_args(Action))},
        "x": {"type": "integer"},
        "y": {"type": "integer"},
        "button": {"type": "string", "enum": list(get_args(Button))},
        "path": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
                "required": ["x", "y"],
            },
        },
        "keys": {"type": "array", "items": {"type": "string"}},
        "scroll_x": {"type": "integer"},
        "scroll_y": {"type": "integer"},
        "text": {"type": "string"},
    },
    "required": ["type"],
}


def prepare_computer(tool: ComputerTool | ComputerUsePreviewTool, param: str, context: ToolContext) -> PreparedTool:
    """The tool for a response; `ApiError` 400 if its model cannot read the screenshots."""
    if context.images_are_files:
        message = "The model cannot read images, and this tool answers with screenshots. Use a model that reads images."
        raise invalid(message, param=param, code="unsupported_value")
    if isinstance(tool, ComputerTool):
        actions = {"type": "array", "items": _ACTION, "minItems": 1, "maxItems": MAX_ACTIONS}
        description = f"Control a computer: `actions` are done one after another. {_ACTION_HELP}"
        spec = FunctionSpec("computer", description, parameters(["actions"], actions=actions))
        return PreparedClientTool(spec, _read_actions)
    screen = f"The display has {tool.display_width} x {tool.display_height} pixels ({tool.environment})."
    description = f"Control a computer by one action at a time. {screen} {_ACTION_HELP}"
    spec = FunctionSpec("computer", description, parameters(["action"], action=_ACTION))
    return PreparedClientTool(spec, lambda call_id, written: _read_action(call_id, written, tool))


def _read_actions(call_id: str, written: str) -> ItemOfCall:
    return _item(call_id, {"actions": [without_nulls(action) for action in _actions(written)]})


def _read_action(call_id: str, written: str, tool: ComputerUsePreviewTool) -> ItemOfCall:
    """The item of a call with one action, which is inside of the display."""
    actions = _actions(written)
    if len(actions) > 1:
        raise InvalidArguments("only one action at a time is possible")
    for point in _points(actions[0]):
        if point.x >= tool.display_width or point.y >= tool.display_height:
            size = f"{tool.display_width} x {tool.display_height}"
            raise InvalidArguments(f"({point.x}, {point.y}) is outside of the display, which has {size} pixels")
    return _item(call_id, {"action": without_nulls(actions[0])})


def _actions(written: str) -> list[Action]:
    """The actions of a call, also where the model wrote one instead of a list, or without the name of the field."""
    fields = read_object(written)
    given: object = fields.get("actions", fields.get("action", fields))
    return convert({"actions": given if isinstance(given, list) else [given]}, _ComputerArguments).actions


def _points(action: Action) -> Iterator[Point]:
    if isinstance(action, Drag):
        yield from action.path
    elif isinstance(action, (Click, DoubleClick, Move, Scroll)):
        yield Point(action.x, action.y)


def _item(call_id: str, done: dict[str, Any]) -> ItemOfCall:
    """The item, which has its actions from the beginning."""
    item: dict[str, Any] = {
        "id": new_id("cu_"),
        "type": "computer_call",
        "status": "in_progress",
        "call_id": call_id,
        **done,
        "pending_safety_checks": [],
    }
    return ItemOfCall(item, {**item, "status": "completed"})
