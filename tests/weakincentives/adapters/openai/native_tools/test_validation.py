from __future__ import annotations

import dataclasses
from typing import Any, Literal

import pytest

from weakincentives.adapters.openai import FileSearchConfig, McpConfig, ShellConfig, WebSearchConfig
from weakincentives.adapters.openai.native_tools.capability import ToolConfigError
from weakincentives.adapters.openai.native_tools.registry import by_config
from weakincentives.adapters.openai.native_tools.validation import matches_type, validate_types

WITH_A_NEED: dict[type, Any] = {
    FileSearchConfig: FileSearchConfig(("vs_1",)),
    McpConfig: McpConfig(server_label="docs", server_url="https://docs.example/"),
}
ODD: list[Any] = [None, 5, True, 2.5, "x", b"x", [1], (None,), ["a"], {"a": 1}, {1: 2}, {"type": "auto"}, object()]


@pytest.mark.parametrize(
    "config, expected",
    [
        (FileSearchConfig("vs_1"), "vector_store_ids must be a tuple of str, not str"),  # pyright: ignore[reportArgumentType] - the point
        (FileSearchConfig((7,)), "vector_store_ids must be a tuple of str, not a tuple of int"),  # pyright: ignore[reportArgumentType] - the same
        (FileSearchConfig(max_results=True), "max_results must be int, not bool"),
        (WebSearchConfig(user_location="Kyiv"), "user_location must be Mapping or None, not str"),  # pyright: ignore[reportArgumentType] - the same
        (McpConfig(server_label="d", authorization=b"s3cret"), "authorization must be str or None, not bytes"),  # pyright: ignore[reportArgumentType] - the same
        (ShellConfig(executor="bash"), "executor must be ShellExecutor or None, not str"),  # pyright: ignore[reportArgumentType] - the same
    ],
)
def test_error_names_field_and_types_but_not_the_value(config, expected):
    assert validate_types(config) == expected


@pytest.mark.parametrize("kind", by_config(), ids=lambda kind: kind.__name__)
def test_valid_config_is_declared_and_invalid_one_refused(kind):
    """Every field of every config, with values of wrong types."""
    capability, config = by_config()[kind], WITH_A_NEED.get(kind) or kind()
    capability.declare(config)
    for field in dataclasses.fields(config):
        for odd in ODD:
            try:
                capability.declare(dataclasses.replace(config, **{field.name: odd}))
            except ToolConfigError as error:
                assert field.name in str(error)  # noqa: PT017 - some of them are fine


@pytest.mark.parametrize(
    "value, wanted, good",
    [
        (["a"], tuple[str, ...], True),
        ("a", tuple[str, ...], False),
        ({"a": 1}, tuple[str, ...], False),
        (True, int, False),
        (True, bool | None, True),
        ("a", Literal["a", "b"], True),
        ("c", Literal["a", "b"], False),
        (object(), Any, True),
    ],
)
def test_matches_type(value, wanted, good):
    assert matches_type(value, wanted) is good
