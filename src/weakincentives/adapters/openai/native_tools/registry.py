"""Registry of native tools: each module of this package whose name ends in `_section` has one `CAPABILITY`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType

from weakincentives.adapters.openai.native_tools.capability import Capability

_PACKAGE = __name__.rpartition(".")[0]


@cache
def capabilities() -> Mapping[str, Capability]:
    """By name, in alphabetical order."""
    found = sorted(f"{_PACKAGE}.{module.name}" for module in iter_modules(import_module(_PACKAGE).__path__))
    known: list[Capability] = [import_module(name).CAPABILITY for name in found if name.endswith("_section")]
    return MappingProxyType({capability.name: capability for capability in known})


@cache
def by_item() -> Mapping[str, Capability]:
    """By the types of the response items of their calls."""
    return MappingProxyType({kind: capability for capability in capabilities().values() for kind in capability.items})


@cache
def by_config() -> Mapping[type, Capability]:
    """By the type of their configuration."""
    return MappingProxyType({capability.config_type: capability for capability in capabilities().values()})
