"""What the server is told: a YAML file and `ANTWORT_*` variables, read strictly into structs.

A key that nobody knows and a value of a wrong type are errors that name key and line,
because a limit that is misspelled is a limit that does not hold. A variable is named by
its path: `ANTWORT_SERVER_PORT` is `server.port`, and goes before what the file says.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, cast, get_args, get_type_hints

import msgspec
import yaml
from msgspec import Meta, Struct, field

from antwort.api.tools import MemoryLimit

_WHERE = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>\$[^`]*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>[^`]+)`")
_ADDRESS = re.compile(r"https?://[^\s/?#@]+/?")
_PREFIX = "ANTWORT_"
_NO_MODELS = ("default", "default_for_unknown", "discover")
_READ_ELSEWHERE = {"ANTWORT_CONFIG", "ANTWORT_MODEL_CACHE"}

Positive: TypeAlias = Annotated[int, Meta(ge=1)]
Seconds: TypeAlias = Annotated[float, Meta(gt=0, le=31_536_000)]  # a year; without an end some of them would break


class ConfigError(Exception):
    """The configuration cannot be used. Says which key, where, and what to do."""


class _Section(Struct, forbid_unknown_fields=True, kw_only=True):
    pass


class ServerSettings(_Section):
    """Where to listen, and what a request may cost."""

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8080
    max_head: Positive = 64 * 1024
    """Bytes of a request's first line and headers."""
    head_timeout: Seconds = 10.0
    """They have so long to arrive."""
    max_body: Positive = 32 * 1024 * 1024
    """Bytes of a JSON body."""
    max_file: Positive = 512 * 1024 * 1024
    """Bytes of an uploaded file."""
    body_timeout: Seconds = 60.0
    """The longest silence while a body is on its way, and after so long it must come with a kilobyte a second."""
    keep_alive: Seconds = 15.0
    """After so long a silence a stream gets a comment, so that nobody in between takes it for dead."""
    stall_timeout: Seconds = 120.0
    """A reader who takes nothing for so long is gone."""
    shutdown_timeout: Positive = 10
    """What is under way when the server is told to stop has so long to finish."""
    max_connections: Positive = 4096


class EmbeddedModel(_Section, tag_field="kind", tag="embedded"):
    """A small model of this machine, in a process beside the server."""

    model: str | None = None
    """A name that `antwort model list` shows, or a `.gguf` file."""
    context: Annotated[int, Meta(ge=512)] = 8192
    """Tokens that a conversation and its answer may have."""
    parallel: Positive = 2
    """So many are answered at once; the others wait."""
    threads: Positive | None = None
    """As many as there are processors, unless it is said."""
    timeout: Seconds = 600.0
    attempts: Positive = 3


class ChatCompletionsModel(_Section, tag_field="kind", tag="chat_completions"):
    """Any server with OpenAI's chat completions."""

    base_url: str
    model: str | None = None
    api_key_env: str | None = None
    headers: dict[str, str] = field(default_factory=dict[str, str])
    ca_file: str | None = None
    """PEM file of the only certificate authorities that are trusted for `base_url`; by default those of the host."""
    timeout: Seconds = 600.0
    attempts: Positive = 3
    developer_role: Literal["system", "developer"] = "system"
    replay_reasoning: Literal["drop", "reasoning_content", "reasoning"] = "drop"
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    images: bool = True
    files: bool = False
    """Whether the server takes files as parts of messages; else only their text is shown, where they have any."""
    tokenizer: Literal["auto", "vllm", "llama_cpp", "estimate"] = "auto"
    extra: dict[str, Any] = field(default_factory=dict[str, Any])


class ResponsesModel(_Section, tag_field="kind", tag="responses"):
    """A server that speaks the Responses API itself."""

    base_url: str
    model: str | None = None
    api_key_env: str | None = None
    headers: dict[str, str] = field(default_factory=dict[str, str])
    ca_file: str | None = None
    """PEM file of the only certificate authorities that are trusted for `base_url`; by default those of the host."""
    timeout: Seconds = 600.0
    attempts: Positive = 3
    replay_reasoning: Literal["sealed", "all", "drop"] = "sealed"


class ScriptedModel(_Section, tag_field="kind", tag="scripted"):
    """Answers from a YAML file; for tests and offline examples."""

    script: str


ModelSettings: TypeAlias = EmbeddedModel | ChatCompletionsModel | ResponsesModel | ScriptedModel


class ModelsSettings(_Section):
    """The models by the names that requests use. The first is the default unless one is named."""

    default: str | None = None
    default_for_unknown: bool = False
    discover: bool = True
    """Whether one is looked for where none is named."""
    named: dict[str, ModelSettings] = field(default_factory=dict[str, ModelSettings])


class StorageSettings(_Section):
    """Where things are kept."""

    url: str = "sqlite:///.antwort/antwort.db"
    blobs: str = ".antwort/blobs"


class AuthSettings(_Section):
    """Who may come in. Without a file of keys only this machine may."""

    keys_file: str | None = None
    requests_per_minute: Positive | None = None
    """For keys that have no limit of their own; without keys, for all callers together."""
    concurrent_responses: Positive | None = None


class EngineSettings(_Section):
    """How far a response goes."""

    max_turns: Positive = 32
    max_attached: Positive = 50 * 1024 * 1024
    """Bytes of uploaded files that one request may show to its model."""


class CodeInterpreterSettings(_Section):
    """Python in sandboxes: of this machine's jail, unless an address or a template says otherwise."""

    enabled: bool | None = None
    """Unless it is said, it is on where code can be run, and off where it cannot; `true` refuses to start there."""
    sandbox_url: str | None = None
    """A sandbox server that runs somewhere."""
    sandbox_token_env: str | None = None
    """The variable that holds its token."""
    sandbox_template: str | None = None
    sandbox_namespace: str | None = None
    execution_timeout: Seconds = 60.0
    claim_timeout: Seconds = 30.0
    """To wait for a sandbox, and for room where an owner has as many containers as there may be."""
    max_output_size: Positive = 10 * 1024 * 1024
    """Bytes of what one run prints and shows; what is more is cut."""
    outputs: Literal["asked", "always"] = "asked"
    """Whether callers get them only where `include` asks for them, as OpenAI does, or always."""


class ContainersSettings(_Section):
    """How long an idle container lives, and what all running containers of one owner may take."""

    expires_after: Annotated[float, Meta(gt=0, le=10_080)] = 20
    """Minutes of idleness, where a request says nothing."""
    max_expires_after: Annotated[int, Meta(ge=1, le=10_080)] = 20
    """The most minutes that a request may ask for."""
    forget_after: Annotated[float, Meta(gt=0)] = 30
    """Days after which what is known of an expired one is forgotten."""
    max_containers: Positive = 32
    max_memory: Positive = 64 * 1024**3
    """Bytes: their memory limits together."""
    max_disk: Positive = 16 * 1024**3
    """Bytes: all files in them together."""
    tiers: Annotated[list[MemoryLimit], Meta(min_length=1)] = field(
        default_factory=lambda: list[MemoryLimit](get_args(MemoryLimit))
    )
    """The memory limits that a request may ask for. The first is the usual one."""


class ProvidersSettings(_Section):
    """Tools that are run here."""

    code_interpreter: CodeInterpreterSettings = field(default_factory=CodeInterpreterSettings)


class LogSettings(_Section):
    """What is told to whoever runs this."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "text"] = "auto"
    """`auto` is text on a terminal and JSON elsewhere."""


class Config(_Section):
    """All of it."""

    server: ServerSettings = field(default_factory=ServerSettings)
    models: ModelsSettings = field(default_factory=ModelsSettings)
    storage: StorageSettings = field(default_factory=StorageSettings)
    auth: AuthSettings = field(default_factory=AuthSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    containers: ContainersSettings = field(default_factory=ContainersSettings)
    providers: ProvidersSettings = field(default_factory=ProvidersSettings)
    log: LogSettings = field(default_factory=LogSettings)


def load(path: Path | None, environment: Mapping[str, str]) -> Config:
    """Read the file, if there is one, and the variables."""
    try:
        text = "" if path is None else path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"The configuration cannot be read: {error}") from error
    return parse(text, environment, name="configuration" if path is None else str(path))


def parse(text: str, environment: Mapping[str, str], *, name: str = "configuration") -> Config:
    """Make sense of the text of a file, and of the variables."""
    document = _Document(name, text)
    data = _with_variables(document.data, environment)
    models = _mapping(data.pop("models", {}), document, "models")
    named = {key: value for key, value in models.items() if key not in _NO_MODELS}
    plain = {key: value for key, value in models.items() if key not in named}
    config = document.convert({**data, "models": plain}, Config, ())
    settings = {key: _model(value, key, document) for key, value in named.items()}
    config = msgspec.structs.replace(config, models=msgspec.structs.replace(config.models, named=settings))
    _check(config, document)
    return config


def _model(value: Any, name: str, document: _Document) -> ModelSettings:  # noqa: ANN401 - YAML may hold anything
    given = _mapping(value, document, f"models.{name}")
    return document.convert(given, cast("type[ModelSettings]", ModelSettings), ("models", name))


def _check(config: Config, document: _Document) -> None:
    models = config.models
    if models.default is not None and models.default not in models.named:
        raise document.error(("models", "default"), f"there is no model {models.default!r} under `models`")
    if models.default_for_unknown and not models.named:
        raise document.error(("models", "default_for_unknown"), "there is no model that could be the default")
    containers = config.containers
    if containers.expires_after > containers.max_expires_after:
        raise document.error(("containers", "expires_after"), "must not be more than `containers.max_expires_after`")
    interpreter = config.providers.code_interpreter
    if interpreter.sandbox_url is not None and interpreter.sandbox_template is not None:
        where = ("providers", "code_interpreter", "sandbox_template")
        raise document.error(where, "give either `sandbox_url` or `sandbox_template`, or neither")
    if interpreter.sandbox_url is not None and not _ADDRESS.fullmatch(interpreter.sandbox_url):
        where = ("providers", "code_interpreter", "sandbox_url")
        raise document.error(where, "must be an address like `http://127.0.0.1:8090`")
    if interpreter.sandbox_namespace is not None and interpreter.sandbox_template is None:
        where = ("providers", "code_interpreter", "sandbox_namespace")
        raise document.error(where, "there is no `sandbox_template` that it could be for")


# ── the file ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Document:
    """A YAML file: its data, and on which line each key is."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.lines: dict[tuple[str, ...], int] = {}
        try:
            self._number(yaml.SafeLoader(text).get_single_node(), ())
            data = yaml.safe_load(text)
        except (yaml.YAMLError, RecursionError) as error:
            mark = getattr(error, "problem_mark", None)
            line = f", line {mark.line + 1}" if mark is not None else ""
            raise ConfigError(f"{name}{line}: not YAML: {getattr(error, 'problem', error)}") from error
        self.data = _mapping({} if data is None else data, self, "")

    def _number(self, node: yaml.Node | None, path: tuple[str, ...]) -> None:
        if not isinstance(node, yaml.MappingNode):
            return
        for key, value in cast("list[tuple[yaml.Node, yaml.Node]]", node.value):
            here = (*path, str(cast("object", key.value)))
            if here in self.lines:
                raise ConfigError(f"{self.name}, line {key.start_mark.line + 1}: {'.'.join(here)} is there twice")
            self.lines[here] = key.start_mark.line + 1
            self._number(value, here)

    def error(self, path: tuple[str, ...], what: str) -> ConfigError:
        """An error at a key; where the key has no line, a variable put it there or its parent has one."""
        line = next((self.lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self.lines), None)
        where = f"{self.name}, line {line}" if line is not None else self.name
        return ConfigError(f"{where}: {'.'.join(path) or 'the file'}: {what}")

    def convert(self, data: Mapping[str, Any], into: type[Any], at: tuple[str, ...]) -> Any:  # noqa: ANN401 - whatever `into` is
        try:
            return msgspec.convert(data, into)
        except msgspec.ValidationError as error:
            raise self._explained(error, at) from error

    def _explained(self, error: msgspec.ValidationError, at: tuple[str, ...]) -> ConfigError:
        found = _WHERE.match(str(error))
        what, where = (found["what"], found["path"] or "$") if found else (str(error), "$")
        path = (*at, *(part for part in re.split(r"\.|\[[^]]*\]", where.removeprefix("$")) if part))
        if unknown := _UNKNOWN.search(what):
            return self.error((*path, unknown["name"]), "unknown key")
        return self.error(path, what[:1].lower() + what[1:])


def _mapping(value: object, document: _Document, path: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in cast("dict[object, object]", value)):
        raise document.error(tuple(path.split(".")) if path else (), "must be a mapping with names as keys")
    return dict(cast("dict[str, Any]", value))


# ── the variables ────────────────────────────────────────────────────────────────────────────────────────────────────


def _variables(into: type[Struct], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every key that a variable can set, and its type."""
    for name, kind in get_type_hints(into, include_extras=True).items():
        if isinstance(kind, type) and issubclass(kind, Struct):
            yield from _variables(kind, (*path, name))
        elif name != "named":
            yield (*path, name), kind


def _with_variables(data: dict[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    known = {_PREFIX + "_".join(path).upper(): (path, kind) for path, kind in _variables(Config)}
    named = _key_variables(data)
    for variable, value in sorted(environment.items()):
        if not variable.startswith(_PREFIX) or variable in _READ_ELSEWHERE or variable in named:
            continue
        if variable not in known:
            near = difflib.get_close_matches(variable, known, 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{variable}: nothing is called so.{hint}")
        path, kind = known[variable]
        try:
            data = _put(data, path, msgspec.convert(value, kind, strict=False))
        except msgspec.ValidationError as error:
            raise ConfigError(f"{variable}: {error}") from error
    return data


def _key_variables(data: Mapping[str, Any]) -> set[object]:
    """Variables that hold keys of upstreams and tokens of sandbox servers, whatever they are called."""
    sections = [data.get(name) for name in ("models", "providers")]
    entries = [entry for one in sections if isinstance(one, dict) for entry in cast("dict[str, object]", one).values()]
    named = [cast("dict[str, object]", entry) for entry in entries if isinstance(entry, dict)]
    return {entry.get(key) for entry in named for key in ("api_key_env", "sandbox_token_env")}


def _put(data: Mapping[str, Any], path: tuple[str, ...], value: object) -> dict[str, Any]:
    first, *rest = path
    if not rest:
        return {**data, first: value}
    inner = data.get(first)
    below = cast("dict[str, Any]", inner) if isinstance(inner, dict) else {}
    return {**data, first: _put(below, tuple(rest), value)}
