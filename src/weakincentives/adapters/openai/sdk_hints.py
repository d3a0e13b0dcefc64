"""Errors that name `citations` and `download` for two expressions that OpenAI's SDK does not have.

Programs written for an earlier draft of the API read annotations with `item.get("annotations")` and download files with
`client.container_files.content(…)`. The SDK reports only that the attributes do not exist. `install` adds both names to
the SDK's classes, as descriptors that raise `AttributeError` with the replacement; so `hasattr` is still false, and a
name that a version of the SDK has itself is left alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Any, Self, cast, get_args

_HELPERS = "weakincentives.adapters.openai"
_ANNOTATIONS = (
    f"annotations belong to the content of messages. Read them with {_HELPERS}.citations(response), and write the "
    f"cited files with {_HELPERS}.download(client, citation, dest)"
)
_CONTAINER_FILES = (
    f"write a cited file with {_HELPERS}.download(client, citation, dest), or read it with "
    "client.containers.files.content.retrieve(file_id, container_id=…)"
)


class _MissingAttribute:
    """Descriptor of an attribute that does not exist. On the class it returns itself, as pydantic's lookup expects."""

    def __init__(self, name: str, replacement: str) -> None:
        self._name = name
        self._replacement = replacement

    def __get__(self, instance: object, owner: type) -> Self:
        if instance is None:
            return self
        message = f"{owner.__name__!r} object has no attribute {self._name!r}: {self._replacement}"
        raise AttributeError(message, name=self._name, obj=instance)


def install() -> None:
    """Explain the missing attributes, if the program has imported the SDK."""
    if "openai" in sys.modules:
        _install()


@cache
def _install() -> None:
    sdk: Any = sys.modules["openai"]
    types: Any = import_module("openai.types.responses")
    items = cast("tuple[type, ...]", get_args(get_args(types.ResponseOutputItem)[0]))  # an annotated union
    _explain((sdk.OpenAI, sdk.AsyncOpenAI), "container_files", _CONTAINER_FILES)
    _explain((*items, types.ResponseOutputText), "get", _ANNOTATIONS)


def _explain(classes: Iterable[type], name: str, replacement: str) -> None:
    for owner in classes:
        if not hasattr(owner, name):
            setattr(owner, name, _MissingAttribute(name, replacement))
