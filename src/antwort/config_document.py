"""The YAML file of the configuration: its data with the line of each key, and errors that name both."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec
import yaml

T = TypeVar("T")

# msgspec ends its messages with the JSON path: "Expected `int`, got `str` - at `$.server.port`".
_ERROR_RE = re.compile(r"^(?P<reason>.*?)(?: - at `(?P<path>\$[^`]*)`)?$", re.DOTALL)
_UNKNOWN_FIELD_RE = re.compile(r"Object contains unknown field `(?P<name>[^`]+)`")


class ConfigError(Exception):
    """The configuration is invalid. The message names the key, its line and the remedy."""


class ConfigDocument:
    """A parsed YAML file: its data, and the line of each key."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.lines: dict[tuple[str, ...], int] = {}
        try:
            self._index_lines(yaml.SafeLoader(text).get_single_node(), ())
            data = yaml.safe_load(text)
        except (yaml.YAMLError, RecursionError) as error:
            mark = getattr(error, "problem_mark", None)
            line = f", line {mark.line + 1}" if mark is not None else ""
            raise ConfigError(f"{name}{line}: invalid YAML: {getattr(error, 'problem', error)}") from error
        self.data = mapping({} if data is None else data, self, "")

    def _index_lines(self, node: yaml.Node | None, parent: tuple[str, ...]) -> None:
        if not isinstance(node, yaml.MappingNode):
            return
        for key, value in cast("list[tuple[yaml.Node, yaml.Node]]", node.value):
            path = (*parent, str(cast("object", key.value)))
            if path in self.lines:
                raise ConfigError(f"{self.name}, line {key.start_mark.line + 1}: duplicate key {'.'.join(path)}")
            self.lines[path] = key.start_mark.line + 1
            self._index_lines(value, path)

    def error(self, path: tuple[str, ...], reason: str) -> ConfigError:
        """An error at a key. A key that a variable has set has no line; then its parent's line is used, if any."""
        line = next((self.lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self.lines), None)
        where = f"{self.name}, line {line}" if line is not None else self.name
        return ConfigError(f"{where}: {'.'.join(path) or 'top level'}: {reason}")

    def convert(self, data: Mapping[str, Any], into: type[T], parent: tuple[str, ...]) -> T:
        """Validate `data`, the mapping at `parent`."""
        try:
            return msgspec.convert(data, into)
        except msgspec.ValidationError as error:
            reason, path = _split(error)
            if unknown := _UNKNOWN_FIELD_RE.search(reason):
                keys = get_type_hints(_type_at(into, path))
                reason = f"unknown key{did_you_mean(unknown['name'], keys)}"
                raise self.error((*parent, *path, unknown["name"]), reason) from error
            hint = valid_values_hint(_type_at(into, path))
            raise self.error((*parent, *path), reason[:1].lower() + reason[1:] + hint) from error


def _split(error: msgspec.ValidationError) -> tuple[str, list[str]]:
    """Msgspec's message, and the path of the key without list indexes."""
    found = _ERROR_RE.match(str(error))
    reason, path = (found["reason"], found["path"] or "$") if found else (str(error), "$")
    return reason, [part for part in re.split(r"\.|\[[^]]*\]", path.removeprefix("$")) if part]


def _type_at(into: Any, path: Iterable[str]) -> Any:  # noqa: ANN401 - any type
    """The type of the value at `path` in a struct."""
    for name in path:
        into = get_type_hints(into).get(name)
    return into


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint at the most similar known name; empty if there is none."""
    similar = difflib.get_close_matches(name, list(known), 1)
    return f". Did you mean {similar[0]}?" if similar else ""


def valid_values_hint(kind: Any) -> str:  # noqa: ANN401 - any type
    """The values of a `Literal`, or of a list of one."""
    literal = next((one for one in (kind, *get_args(kind)) if get_origin(one) is Literal), None)
    return "" if literal is None else f". {valid_values(get_args(literal))}"


def valid_values(values: Iterable[str]) -> str:
    """The values, for a message."""
    return f"Valid values: {', '.join(values)}."


def mapping(value: object, document: ConfigDocument, path: str) -> dict[str, Any]:
    """The value at `path`, which must be a mapping with string keys."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in cast("dict[object, object]", value)):
        raise document.error(tuple(path.split(".")) if path else (), "must be a mapping with string keys")
    return dict(cast("dict[str, Any]", value))
