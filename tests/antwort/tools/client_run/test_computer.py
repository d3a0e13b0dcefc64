from __future__ import annotations

import json
from typing import Any

import pytest

from antwort.api.errors import ApiError
from antwort.api.tools import ComputerTool, ComputerUsePreviewTool
from antwort.engine.ports import CallRefused, ToolContext
from antwort.engine.stores import Owner
from antwort.tools.client_run.computer import prepare_computer

pytestmark = pytest.mark.anyio

DISPLAY = ComputerUsePreviewTool(display_width=800, display_height=600, environment="browser")


@pytest.fixture
def anyio_backend():
    return "asyncio"


def context(**more: Any) -> ToolContext:
    return ToolContext(
        owner=Owner("us", "key"), response_id="resp_1", history=[], given=[], include=frozenset(), **more
    )


async def item(tool: ComputerTool | ComputerUsePreviewTool, **arguments: Any) -> dict[str, Any]:
    """The item of a call."""
    prepared = prepare_computer(tool, "tools[0]", context())
    call = await prepared.open("computer", "call_1", json.dumps(arguments))
    return call.item


ACTIONS = [
    {"type": "click", "x": 1, "y": 2, "button": "left"},
    {"type": "click", "x": 1, "y": 2, "button": "wheel", "keys": ["SHIFT"]},
    {"type": "double_click", "x": 799, "y": 599},
    {"type": "drag", "path": [{"x": 0, "y": 0}, {"x": 5, "y": 6}]},
    {"type": "keypress", "keys": ["CTRL", "C"]},
    {"type": "move", "x": 3, "y": 4},
    {"type": "screenshot"},
    {"type": "scroll", "x": 1, "y": 2, "scroll_x": 0, "scroll_y": -120},
    {"type": "type", "text": "Grüße 🍵"},
    {"type": "wait"},
]


async def test_every_action_reaches_the_client_as_the_model_wrote_it():
    called = await item(ComputerTool(), actions=ACTIONS)

    assert called["actions"] == ACTIONS
    assert "action" not in called
    for action in ACTIONS:
        called = await item(DISPLAY, action=action)
        assert (called["action"], "actions" in called) == (action, False)


async def test_defaults_are_added_and_unknown_fields_are_dropped():
    called = await item(ComputerTool(), actions=[{"type": "click", "x": 1.0, "y": "2", "why": "because"}])

    assert called["actions"] == [{"type": "click", "x": 1, "y": 2, "button": "left"}]


@pytest.mark.parametrize(
    "action, reason",
    [
        ({"type": "click", "x": 1}, "missing required field `y`"),
        ({"type": "drag", "path": [{"x": 0, "y": 0}]}, "path"),
        ({"type": "drag", "path": [{"x": 0, "y": 0}, {"x": 0, "y": 600}]}, r"\(0, 600\) is outside of the display"),
        ({"type": "keypress", "keys": []}, "keys"),
        ({"type": "click", "x": 1, "y": 2, "button": "middle"}, "middle"),
        ({"x": 1, "y": 2}, "missing required field `type`"),
    ],
)
async def test_a_broken_action_is_refused(action, reason):
    with pytest.raises(CallRefused, match=reason):
        await item(DISPLAY, action=action)


async def test_a_broken_call_may_be_made_again():
    prepared = prepare_computer(ComputerTool(), "tools[0]", context())
    with pytest.raises(CallRefused) as caught:
        await prepared.open("computer", "call_1", "{}")

    assert caught.value.is_broken


def test_a_model_without_vision_gets_no_computer():
    with pytest.raises(ApiError, match="cannot read images") as caught:
        prepare_computer(DISPLAY, "tools[3]", context(images_are_files=True))
    assert caught.value.param == "tools[3]"
