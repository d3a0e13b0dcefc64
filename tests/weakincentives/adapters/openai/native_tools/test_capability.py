from __future__ import annotations

from dataclasses import dataclass

import pytest

from weakincentives.adapters.openai.native_tools.capability import (
    Capability,
    NativeSection,
    ParsedCall,
    ProviderRan,
    ResponseContext,
    ToolConfigError,
    check_one_of,
    failed_result,
    without_none,
)
from weakincentives.adapters.openai.wire import Wire
from weakincentives.errors import PromptValidationError
from weakincentives.prompt import NativeDeclaration, ToolResult
from weakincentives.resources import ResourceRegistry


@dataclass(frozen=True)
class PaintConfig:
    colour: str = "red"


class Paint(Capability):
    name = "paint"
    items = frozenset({"paint_call"})
    config_type = PaintConfig
    fields = ("colour", "size")
    example = ProviderRan(None, ToolResult(""))

    def declaration_fields(self, config: PaintConfig) -> Wire | None:
        check_one_of(config.colour, ("red", "none"), "colour")
        return None if config.colour == "none" else {"colour": config.colour}

    def parse_call(self, item: Wire, response: ResponseContext, config: object) -> ParsedCall:
        return None


class PaintSection(NativeSection[PaintConfig]):
    capability = Paint()


def test_config_becomes_a_declaration():
    paint = Paint()

    assert paint.declare(PaintConfig()) == paint.declare(None) == {"type": "paint", "colour": "red"}
    assert paint.declare(PaintConfig("none")) is None
    assert paint.declare({"type": "paint", "size": 3}) == {"type": "paint", "size": 3}
    assert paint.declare({"type": "built_in", "name": "paint", "size": 3}) == {"type": "paint", "size": 3}


@pytest.mark.parametrize(
    "config, expected",
    [
        (PaintConfig("blue"), "colour must be one of red, none, not 'blue'"),
        (7, "its config must be a PaintConfig, not 7"),
        ({"type": "paint", "name": "x"}, "'name' is no field of paint; allowed are: colour, size"),
    ],
)
def test_invalid_config_error_names_allowed_values(config, expected):
    with pytest.raises(ToolConfigError, match=expected):
        Paint().declare(config)


def test_capability_defaults():
    paint = Paint()

    assert (paint.slot({}), paint.choice({})) == ("paint", {"type": "paint"})
    assert not paint.needs_container({})
    assert paint.with_container({"type": "paint"}, "cntr_1") == {"type": "paint"}
    paint.check_resources({}, None, ResourceRegistry())
    assert paint.declaration(None, origin="here") == NativeDeclaration("paint", "paint", "openai", None, None, "here")


def test_section_is_checked_on_construction_and_on_clone():
    section = PaintSection(title="Paint", key="paint", default_params=PaintConfig())

    assert section.render(None, 0, "1") == ""
    assert section.native_tools() == (NativeDeclaration("paint", "paint", "openai", PaintConfig()),)
    assert section.native_tools(PaintConfig("none"))[0].config == PaintConfig("none")
    with pytest.raises(PromptValidationError, match="section 'paint': colour must be one of"):
        section.clone(default_params=PaintConfig("blue"))


@pytest.mark.parametrize(
    "item, expected",
    [
        ({"type": "x_call", "status": "failed"}, "x_call failed (failed): no reason given"),
        ({"type": "x_call", "status": "incomplete"}, "x_call failed (incomplete): no reason given"),
        ({"type": "x_call", "error": "out of paint"}, "x_call failed (None): out of paint"),
        ({"type": "x_call", "error": {"code": "e1", "message": "no"}}, "x_call failed (e1): no"),
        ({"type": "x_call", "error": {"type": "http", "code": 401, "message": "no"}}, "x_call failed (http 401): no"),
        ({"type": "x_call", "error": {"type": "t", "content": ["a"]}}, 'x_call failed (t): ["a"]'),
    ],
)
def test_failed_result_has_the_provider_error_code(item, expected):
    result = failed_result(item)

    assert result is not None
    assert (result.message, result.success, result.value) == (expected, False, None)


def test_successful_item_has_no_failed_result():
    assert failed_result({"status": "completed", "error": None}) is None
    assert failed_result({}) is None
    assert without_none(a=1, b=None, c=0) == {"a": 1, "c": 0}
