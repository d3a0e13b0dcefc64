"""Configuration: a YAML file and `ANTWORT_*` environment variables, validated into msgspec structs.

An unknown key or a value of a wrong type is an error that names the key and its line, because a misspelled limit
would otherwise not be in force. A variable is named after the path of its key: `ANTWORT_SERVER_PORT` sets
`server.port`. Variables take precedence over the file.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec
import yaml
from msgspec import Meta, Struct, field

from antwort.api.tools import MemoryLimit
from antwort.config_document import ConfigDocument, ConfigError, did_you_mean, mapping, valid_values, valid_values_hint
from antwort.mcp_settings import McpServerSettings, McpSettings, problem_of_server

_URL_RE = re.compile(r"https?://[^\s/?#@]+/?")
_BASE_URL_RE = re.compile(r"https?://[^\s/?#@]+(?:/[^\s?#]*)?")
_ORIGIN_RE = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?P<port>:\d{1,5})?")
_DEFAULT_PORTS = ("http", ":80"), ("https", ":443")
_OBJECT_STORE_SCHEMES = ("s3", "gs", "az")
_OBJECT_STORE_URL_RE = re.compile(r"(?P<scheme>[a-z0-9+.-]+)://(?P<bucket>[^/?#@:]+)(?:/[^?#]*)?")
_PREFIX = "ANTWORT_"
_MCP_SERVERS = ("providers", "mcp", "servers")
_MODELS_OPTIONS = ("aliases", "default", "default_for_unknown", "discover")
_OTHER_VARIABLES = {"ANTWORT_CONFIG", "ANTWORT_MODEL_CACHE"}  # read by the CLI and the weights cache

_MEMORY_LIMITS: tuple[MemoryLimit, ...] = get_args(MemoryLimit)

T = TypeVar("T")

Positive: TypeAlias = Annotated[int, Meta(ge=1)]
Seconds: TypeAlias = Annotated[float, Meta(gt=0, le=31_536_000)]  # at most a year: larger values overflow in timers
SecondsOrZero: TypeAlias = Annotated[float, Meta(ge=0, le=31_536_000)]


class _Section(Struct, forbid_unknown_fields=True, kw_only=True):
    pass


class WebSocketSettings(_Section):
    """Configuration: the WebSocket of `/v1/responses`."""

    enabled: bool = True
    max_age: Seconds = 3600.0
    """After this time a connection takes no more requests, and is closed when no response runs."""
    idle_timeout: Seconds = 1800.0
    """A connection without a running response is closed after this time."""
    max_per_tenant: Positive = 100
    """Open connections of one tenant on this process."""
    max_history: Positive = 16 * 1024 * 1024
    """Bytes of the histories with `store: false` that a connection keeps, so that requests can continue them."""


class ServerSettings(_Section):
    """Configuration: listening address, request limits and timeouts."""

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8080
    max_head: Positive = 64 * 1024
    """Maximum bytes of the request line and headers."""
    head_timeout: Seconds = 10.0
    """Timeout for receiving the request line and headers."""
    max_body: Positive = 32 * 1024 * 1024
    """Maximum bytes of a JSON body."""
    max_file: Positive = 512 * 1024 * 1024
    """Maximum bytes of an uploaded file."""
    body_timeout: Seconds = 60.0
    """Read timeout between two chunks of a body; past it the average rate must be at least 1 kB/s."""
    keep_alive: Seconds = 15.0
    """Interval of SSE keep-alive comments on an idle stream, so that proxies do not close it."""
    stall_timeout: Seconds = 120.0
    """Write timeout: a client that reads nothing for this long counts as disconnected."""
    shutdown_timeout: Positive = 10
    """Graceful shutdown: running requests may take this long to finish."""
    max_connections: Positive = 4096
    cors_origins: list[str] = field(default_factory=list[str])
    """Origins whose web pages may use the server (CORS), such as `https://app.example`; `*` is every origin."""
    websocket: WebSocketSettings = field(default_factory=WebSocketSettings)
    replica_url: str | None = None
    """Where other replicas on the same store reach this one, such as `http://10.0.0.7:8080`."""


class _RetriedModel(_Section, kw_only=True):
    timeout: Seconds = 600.0
    """Timeout of one answer, retries included."""
    attempts: Positive = 3
    """How often a request is sent at most, if it fails with a retryable error."""
    base_backoff: SecondsOrZero = 0.5
    """Back-off: the delay before a retry is random, below a bound. This is the first bound; it doubles…"""
    max_backoff: SecondsOrZero = 8.0
    """…up to this one."""
    max_retry_after: SecondsOrZero = 20.0
    """The longest `retry-after` of an upstream that is waited for; a longer one is returned to the caller."""
    breaker_failures: Annotated[int, Meta(ge=0)] = 5
    """Consecutive failures of a tenant's requests that open its circuit breaker. 0: no circuit breaker."""
    breaker_pause: Seconds = 10.0
    """How long an open circuit breaker rejects requests."""
    breaker_wait: Seconds = 10.0
    """How long a request waits for the probe of a circuit breaker."""


class EmbeddedModel(_RetriedModel, tag_field="kind", tag="embedded"):
    """Configuration of an embedded model: a llama.cpp process that the server starts."""

    model: str | None = None
    """A name from `antwort model list`, or a `.gguf` file."""
    context: Annotated[int, Meta(ge=512)] = 8192
    """Context window in tokens: the conversation and the answer together."""
    parallel: Positive = 2
    """Requests that are decoded concurrently; further requests wait."""
    threads: Positive | None = None
    """Default: the number of processors."""


class _Upstream(_RetriedModel):
    base_url: str
    model: str | None = None
    api_key_env: str | None = None
    headers: dict[str, str] = field(default_factory=dict[str, str])
    ca_file: str | None = None
    """PEM file of the only certificate authorities that are trusted for `base_url`; by default those of the host."""


class ChatCompletionsModel(_Upstream, tag_field="kind", tag="chat_completions"):
    """Configuration of an upstream with OpenAI's Chat Completions API."""

    developer_role: Literal["system", "developer"] = "system"
    replay_reasoning: Literal["drop", "reasoning_content", "reasoning"] = "drop"
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    images: bool = True
    files: bool = False
    """Whether the upstream accepts files as message parts. Otherwise only their text is sent, if they have any."""
    tokenizer: Literal["auto", "vllm", "llama_cpp", "estimate"] = "auto"
    extra: dict[str, Any] = field(default_factory=dict[str, Any])


class ResponsesModel(_Upstream, tag_field="kind", tag="responses"):
    """Configuration of an upstream with the Responses API."""

    replay_reasoning: Literal["sealed", "all", "drop"] = "sealed"
    compaction: Literal["auto", "upstream", "server"] = "auto"
    """Where histories are compacted; `auto`: by the upstream if it has the endpoint, else by this server."""


class ScriptedModel(_Section, tag_field="kind", tag="scripted"):
    """Configuration of a scripted model: answers from a YAML file, for tests and offline examples."""

    script: str


ModelSettings: TypeAlias = EmbeddedModel | ChatCompletionsModel | ResponsesModel | ScriptedModel
_MODEL_KINDS: dict[str, type[ModelSettings]] = {
    str(kind.__struct_config__.tag): kind
    for kind in (ChatCompletionsModel, EmbeddedModel, ResponsesModel, ScriptedModel)
}


class ModelsSettings(_Section):
    """Configuration: the models by name. The first is the default unless `default` names another."""

    aliases: dict[str, str] = field(default_factory=dict[str, str])
    """Further names for configured models. A name may be a glob, such as `gpt-*`: see `antwort.models.aliases`."""
    default: str | None = None
    default_for_unknown: bool | None = None
    """Whether unknown names get the default model. Default: yes, unless the configuration names several models."""
    discover: bool = True
    """Whether to search for a model when none is configured."""
    named: dict[str, ModelSettings] = field(default_factory=dict[str, ModelSettings])


class ObjectStoreSettings(_Section):
    """Configuration of the object store that `storage.blobs` names. Credentials come from its usual variables."""

    endpoint: str | None = None
    """The URL of a store other than Amazon's that speaks S3. Default: `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`."""
    region: str | None = None
    """Default: `AWS_REGION`, `AWS_DEFAULT_REGION`, else `us-east-1`."""
    path_style: bool | None = None
    """Whether the bucket is in the path of a URL instead of its host name. Default: where there is an endpoint."""
    allow_http: bool = False
    """Whether an endpoint other than a loopback address may be `http://`: everything is sent without encryption."""


class StorageSettings(_Section):
    """Configuration: database URL, and the directory or the object store of file contents (blobs)."""

    url: str = "sqlite:///.antwort/antwort.db"
    blobs: str = ".antwort/blobs"
    """A directory, or `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`."""
    object_store: ObjectStoreSettings = field(default_factory=ObjectStoreSettings)
    orphan_age: Seconds = 86_400.0
    """How long a blob without a record, in a place that other servers may write to, can be an upload in progress."""
    sweep_interval: Seconds = 600.0
    """How often expired files, and blobs without a record, are deleted."""


class AuthSettings(_Section):
    """Configuration: API keys and rate limits. Without a key file the server accepts loopback connections only."""

    keys_file: str | None = None
    """The file that `antwort keys` writes. Default: `keys.json` beside the blob directory, if it exists; in `.antwort`
    where blobs are in an object store."""
    requests_per_minute: Positive | None = None
    """Default for keys without a limit of their own. Without a key file, the limit of all callers together."""
    concurrent_responses: Positive | None = None


class EngineSettings(_Section):
    """Configuration: limits of one response."""

    max_turns: Positive = 32
    max_attached: Positive = 50 * 1024 * 1024
    """Maximum bytes of uploaded files that one request may send to its model."""


class CompactionSettings(_Section):
    """Configuration of compaction: the model that writes summaries, token budgets, and the file of the sealing keys."""

    keys_file: str | None = None
    """The keys that seal compaction and reasoning items. Default: `compaction-keys.json` beside the blob directory, or
    in `.antwort` where blobs are in an object store."""
    model: str | None = None
    """The model under `models` that writes the summaries. Default: the model of the request."""
    threshold: Positive = 100_000
    """Tokens of the context from which a request that enables compaction without `compact_threshold` is compacted."""
    summary_tokens: Positive = 2_000
    """Maximum tokens of a summary."""
    user_message_tokens: Positive = 20_000
    """Tokens of the newest user messages that are kept verbatim."""
    tool_output_tokens: Positive = 4_000
    """Tokens of the newest tool calls that are kept verbatim, with their results."""


class CodeInterpreterSettings(_Section):
    """Configuration of the code interpreter: runs Python in the local jail, on a sandbox server, or in claimed pods."""

    enabled: bool | None = None
    """Default: on if this machine can run code. With `true`, a machine that cannot is an error at start."""
    sandbox_url: str | None = None
    """The URL of a running sandbox server."""
    sandbox_token_env: str | None = None
    """The environment variable that holds the token of the sandbox server, or of the pods."""
    sandbox_template: str | None = None
    """The SandboxTemplate of agent-sandbox: every container is a Kubernetes pod that is claimed from its warm pool."""
    sandbox_warm_pool: str | None = None
    """The SandboxWarmPool to claim from. Default: the name of the template."""
    sandbox_namespace: str | None = None
    """The namespace of the claims. Default: that of this pod, or of the context of the kubeconfig, or `default`."""
    sandbox_port: Annotated[int, Meta(ge=1, le=65_535)] = 8080
    """The port of the sandbox server in the pods."""
    sandbox_router: str | None = None
    """The URL of the router of agent-sandbox, for pods that this server cannot reach directly."""
    sandbox_router_token_env: str | None = None
    """The environment variable that holds the token of the router, where it requires one."""
    kubeconfig: str | None = None
    """Path of a kubeconfig. Default: the service account of this pod, else `KUBECONFIG` or `~/.kube/config`."""
    execution_timeout: Seconds = 60.0
    claim_timeout: Seconds = 30.0
    """Timeout for acquiring a sandbox, and for capacity when a tenant has reached `max_containers`."""
    max_output_size: Positive = 10 * 1024 * 1024
    """Maximum bytes of one run's output and figures; the rest is truncated."""
    outputs: Literal["asked", "always"] = "asked"
    """Whether responses contain outputs only if `include` requests them, as OpenAI does, or always."""


class ContainersSettings(_Section):
    """Configuration: container expiry, and quotas for all running containers of one tenant."""

    expires_after: Annotated[float, Meta(gt=0, le=10_080)] = 20
    """Default idle minutes until a container expires."""
    max_expires_after: Annotated[int, Meta(ge=1, le=10_080)] = 20
    """Maximum idle minutes that a request may set."""
    forget_after: Annotated[float, Meta(gt=0)] = 30
    """Days after which the record of an expired container is deleted."""
    max_containers: Positive = 32
    max_memory: Positive = 64 * 1024**3
    """Bytes: the sum of the memory limits."""
    max_disk: Positive = 16 * 1024**3
    """Bytes: the sum of all files."""
    tiers: Annotated[list[MemoryLimit], Meta(min_length=1)] = field(default_factory=lambda: list(_MEMORY_LIMITS))
    """The memory limits that a request may set. The first is the default."""


class SkillsSettings(_Section):
    """Configuration: quotas for the skills that one tenant stores."""

    max_skills: Positive = 100
    max_versions: Positive = 1000
    """Of all skills together."""
    max_bytes: Positive = 256 * 1024 * 1024
    """Bytes of the archives of all versions."""


class ToolsSettings(_Section):
    """Configuration: the tools that requests declare."""

    unavailable: Literal["refuse", "ignore"] = "refuse"
    """Whether a request that declares a hosted tool which this server lacks is refused, or runs without the tool."""


class WebCacheSettings(_Section):
    """Configuration: what is kept, for each tenant, of the pages that its web searches retrieved."""

    max_bytes: Positive = 64 * 1024 * 1024
    """Characters of all pages of one tenant, about; the oldest are deleted."""
    max_age: Seconds = 30 * 86_400.0
    """Seconds after which a page is deleted."""
    fresh_for: SecondsOrZero = 900.0
    """Seconds for which a page is not fetched again."""


class WebSearchSettings(_Section):
    """Configuration of the web search: the search engine, and the cache of retrieved pages."""

    enabled: bool | None = None
    """Default: on if an engine is configured."""
    engine: Literal["searxng", "brave", "tavily", "exa", "local"] | None = None
    """The search engine; `local` searches a folder of saved pages."""
    url: str | None = None
    """The base URL of SearXNG; of another engine, a replacement of its own."""
    api_key_env: str | None = None
    """The environment variable that holds the key of the engine."""
    folder: str | None = None
    """The folder of saved pages of the engine `local`."""
    timeout: Annotated[float, Meta(gt=0, le=120)] = 10.0
    """Seconds for one search."""
    cache: WebCacheSettings = field(default_factory=WebCacheSettings)


class ProvidersSettings(_Section):
    """Configuration of the hosted tools."""

    code_interpreter: CodeInterpreterSettings = field(default_factory=CodeInterpreterSettings)
    mcp: McpSettings = field(default_factory=McpSettings)
    web_search: WebSearchSettings = field(default_factory=WebSearchSettings)


class FetchSettings(_Section):
    """Configuration of the fetcher of URLs that users and models choose: its limits, and where it may connect to."""

    timeout: Annotated[float, Meta(gt=0, le=300)] = 20.0
    """Seconds for one page, with name resolution, redirects and body."""
    max_bytes: Annotated[int, Meta(ge=1024, le=64 * 1024 * 1024)] = 5 * 1024 * 1024
    """Maximum bytes of a page, before and after decompression."""
    max_redirects: Annotated[int, Meta(ge=0, le=20)] = 5
    ports: Annotated[list[Annotated[int, Meta(ge=1, le=65_535)]], Meta(min_length=1)] = field(
        default_factory=lambda: [80, 443]
    )
    """The ports that may be connected to."""
    allow_networks: list[str] = field(default_factory=list[str])
    """Networks beside the public internet that may be connected to, such as `10.1.0.0/16` or `127.0.0.1/32`."""
    input_urls: bool = False
    """Whether the URLs of images and files of the input are fetched."""


class LogSettings(_Section):
    """Configuration: log level and format."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "text"] = "auto"
    """`auto` is text on a terminal and JSON otherwise."""


class Config(_Section):
    """The complete configuration of the server."""

    server: ServerSettings = field(default_factory=ServerSettings)
    models: ModelsSettings = field(default_factory=ModelsSettings)
    storage: StorageSettings = field(default_factory=StorageSettings)
    auth: AuthSettings = field(default_factory=AuthSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    compaction: CompactionSettings = field(default_factory=CompactionSettings)
    containers: ContainersSettings = field(default_factory=ContainersSettings)
    skills: SkillsSettings = field(default_factory=SkillsSettings)
    tools: ToolsSettings = field(default_factory=ToolsSettings)
    providers: ProvidersSettings = field(default_factory=ProvidersSettings)
    fetch: FetchSettings = field(default_factory=FetchSettings)
    log: LogSettings = field(default_factory=LogSettings)


def is_object_store(blobs: str) -> bool:
    """Whether a `storage.blobs` is the URL of an object store, and not a directory."""
    return "://" in blobs


def state_directory(config: Config) -> Path:
    """The directory of local files: that of the blob directory, or `.antwort` where blobs are in an object store."""
    blobs = config.storage.blobs
    return Path(".antwort") if is_object_store(blobs) else Path(blobs).parent


def api_keys_path(config: Config) -> Path:
    """The file of the API keys: `auth.keys_file`, or its default in the state directory."""
    configured = config.auth.keys_file
    return state_directory(config) / "keys.json" if configured is None else Path(configured)


def compaction_keys_path(config: Config) -> Path:
    """The file of the sealing keys: `compaction.keys_file`, or its default in the state directory."""
    configured = config.compaction.keys_file
    return state_directory(config) / "compaction-keys.json" if configured is None else Path(configured)


def load(path: Path | None, environment: Mapping[str, str]) -> Config:
    """Load the configuration from a YAML file, if given, and the environment variables."""
    try:
        text = "" if path is None else path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"Cannot read the configuration: {error}") from error
    return parse(text, environment, name="configuration" if path is None else str(path))


def parse(text: str, environment: Mapping[str, str], *, name: str = "configuration") -> Config:
    """Parse the text of a YAML file and the environment variables."""
    document = ConfigDocument(name, text)
    data = _with_variables(document.data, environment)
    models = mapping(data.pop("models", {}), document, "models")
    options = {key: value for key, value in models.items() if key in _MODELS_OPTIONS}
    if "aliases" in options:
        options["aliases"] = _aliases(options["aliases"], document)
    data, servers = _without(data, _MCP_SERVERS)
    config = document.convert({**data, "models": options}, Config, ())
    named = {key: _model(value, key, document) for key, value in models.items() if key not in options}
    config = msgspec.structs.replace(config, models=msgspec.structs.replace(config.models, named=named))
    for label, value in mapping(servers, document, ".".join(_MCP_SERVERS)).items():
        path = (*_MCP_SERVERS, label)
        settings = mapping(value, document, ".".join(path))
        config.providers.mcp.servers[label] = document.convert(settings, McpServerSettings, path)
    _check(config, document)
    return config


def _without(data: dict[str, Any], path: tuple[str, ...]) -> tuple[dict[str, Any], object]:
    """The data without the value at `path`, and that value: an empty mapping if there is none."""
    first, *rest = path
    none: dict[str, Any] = {}
    if first not in data:
        return data, none
    if not rest:
        return {key: value for key, value in data.items() if key != first}, data[first]
    if not isinstance(data[first], dict):
        return data, none
    below, found = _without(cast("dict[str, Any]", data[first]), tuple(rest))
    return {**data, first: below}, found


def _model(value: object, name: str, document: ConfigDocument) -> ModelSettings:
    settings = mapping(value, document, f"models.{name}")
    kind = settings.get("kind")
    if kind not in list(_MODEL_KINDS):  # a list, because YAML may hold an unhashable value
        problem = "missing" if kind is None else f"invalid value {kind!r}"
        raise document.error(("models", name, "kind"), f"{problem}. {valid_values(_MODEL_KINDS)}")
    return document.convert(settings, _MODEL_KINDS[cast("str", kind)], ("models", name))


def _aliases(value: object, document: ConfigDocument) -> dict[str, str]:
    """The aliases, with errors that name the alias: msgspec's messages name only the mapping."""
    aliases = mapping(value, document, "models.aliases")
    for alias, target in aliases.items():
        if not isinstance(target, str):
            raise document.error(("models", "aliases", alias), f"expected the name of a model, got {target!r}")
    return aliases


def _check(config: Config, document: ConfigDocument) -> None:
    _check_models(config.models, document)
    models = config.models
    writer = config.compaction.model
    if writer is not None and writer not in models.named:
        raise document.error(("compaction", "model"), f"no model {writer!r} under `models`")
    containers = config.containers
    if containers.expires_after > containers.max_expires_after:
        raise document.error(("containers", "expires_after"), "must not exceed `containers.max_expires_after`")
    _check_origins(config, document)
    replica_url = config.server.replica_url
    if replica_url is not None and not _URL_RE.fullmatch(replica_url):
        raise document.error(("server", "replica_url"), "must be a URL like `http://10.0.0.7:8080`")
    interpreter = config.providers.code_interpreter
    for name in ("sandbox_url", "sandbox_router"):
        url: str | None = getattr(interpreter, name)
        if url is not None and not _URL_RE.fullmatch(url):
            path = ("providers", "code_interpreter", name)
            raise document.error(path, "must be a URL like `http://127.0.0.1:8090`")
    _check_template(interpreter, document)
    _check_blobs(config.storage, document)
    _check_web_search(config.providers.web_search, document)
    _check_mcp(config.providers.mcp, document)
    _check_networks(config.fetch.allow_networks, ("fetch", "allow_networks"), document)


def _check_networks(networks: Iterable[str], path: tuple[str, ...], document: ConfigDocument) -> None:
    for network in networks:
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            raise document.error(path, f"{network!r} is not a network: {error}") from error


def _check_mcp(mcp: McpSettings, document: ConfigDocument) -> None:
    _check_networks(mcp.allow_networks, ("providers", "mcp", "allow_networks"), document)
    for label, server in mcp.servers.items():
        if (problem := problem_of_server(label, server)) is not None:
            key, reason = problem
            raise document.error((*_MCP_SERVERS, label, *key), reason)


def _check_blobs(storage: StorageSettings, document: ConfigDocument) -> None:
    where, settings = ("storage", "object_store"), storage.object_store
    is_s3 = storage.blobs.startswith("s3://")
    for name in ("endpoint", "region", "path_style"):
        if getattr(settings, name) is not None and not is_s3:
            raise document.error((*where, name), "`storage.blobs` is not an `s3://bucket/prefix` that it could be for")
    if is_object_store(storage.blobs):
        # The value is not quoted: it may contain a password.
        found = _OBJECT_STORE_URL_RE.fullmatch(storage.blobs)
        if found is None or found["scheme"] not in _OBJECT_STORE_SCHEMES:
            reason = "must be a directory, or `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`"
            raise document.error(("storage", "blobs"), f"{reason}; credentials come from environment variables")
    if settings.endpoint is None:
        return
    if not _URL_RE.fullmatch(settings.endpoint):
        raise document.error((*where, "endpoint"), "must be a URL like `https://minio.example:9000`")


def _check_web_search(search: WebSearchSettings, document: ConfigDocument) -> None:
    path = ("providers", "web_search")
    if search.engine is None:
        if search.enabled:
            raise document.error((*path, "enabled"), "needs an `engine`, such as `searxng` with its `url`")
        for name in ("url", "api_key_env", "folder"):
            if getattr(search, name) is not None:
                raise document.error((*path, name), "there is no `engine` that it could be for")
        return
    if search.url is not None and not _BASE_URL_RE.fullmatch(search.url):
        raise document.error((*path, "url"), "must be a URL like `http://127.0.0.1:8888`, without a query")
    needed = {"searxng": "url", "local": "folder"}.get(search.engine, "api_key_env")
    if getattr(search, needed) is None:
        raise document.error((*path, "engine"), f"the engine `{search.engine}` needs `{needed}`")
    for name in ("url", "api_key_env") if search.engine == "local" else ("folder",):
        if getattr(search, name) is not None:
            raise document.error((*path, name), f"the engine `{search.engine}` has none")


def _check_template(interpreter: CodeInterpreterSettings, document: ConfigDocument) -> None:
    path = ("providers", "code_interpreter")
    if interpreter.sandbox_template is not None:
        if interpreter.sandbox_url is not None:
            reason = "`sandbox_template` and `sandbox_url` exclude each other. Remove one of them."
            raise document.error((*path, "sandbox_template"), reason)
        if interpreter.sandbox_router_token_env is not None and interpreter.sandbox_router is None:
            reason = "there is no `sandbox_router` that it could be for"
            raise document.error((*path, "sandbox_router_token_env"), reason)
        return
    for name in (
        *("sandbox_warm_pool", "sandbox_namespace", "kubeconfig"),
        *("sandbox_router", "sandbox_router_token_env"),
    ):
        if getattr(interpreter, name) is not None:
            raise document.error((*path, name), "there is no `sandbox_template` that it could be for")


def _check_models(models: ModelsSettings, document: ConfigDocument) -> None:
    if models.default is not None and models.default not in models.named:
        raise document.error(("models", "default"), f"no model {models.default!r} under `models`")
    if models.default_for_unknown and not models.named and not models.discover:
        reason = "no model is configured that could be the default, and `models.discover` is off"
        raise document.error(("models", "default_for_unknown"), reason)
    for alias, target in models.aliases.items():
        path = ("models", "aliases", alias)
        if target not in models.named:
            known = ", ".join(models.named) or "none"
            raise document.error(path, f"no model {target!r} under `models`. Configured models: {known}.")
        if alias in models.named:
            raise document.error(path, "is the name of a configured model. Rename one of them, or remove the alias.")
    for name, model in models.named.items():
        if isinstance(model, _RetriedModel) and model.base_backoff > model.max_backoff:
            path = ("models", name, "base_backoff")
            raise document.error(path, f"must not exceed `max_backoff`, which is {model.max_backoff:g}")


def _check_origins(config: Config, document: ConfigDocument) -> None:
    path, origins = ("server", "cors_origins"), config.server.cors_origins
    for origin in origins:
        found = _ORIGIN_RE.fullmatch(origin)
        # Browsers omit the default port, so that such an entry would match nothing.
        is_valid = found is not None and (origin.partition(":")[0], found["port"]) not in _DEFAULT_PORTS
        if not is_valid and origin != "*":
            problem = (
                f"{origin!r} is not an origin as browsers send it: scheme, host and any port other than the default"
            )
            raise document.error(path, f"{problem}, in lower case and without a path, such as `https://app.example`")


# ── environment variables ────────────────────────────────────────────────────────────────────────────────────────────


def _variables(into: type[Struct], parent: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The path and type of every key that a variable can set."""
    for name, kind in get_type_hints(into, include_extras=True).items():
        if isinstance(kind, type) and issubclass(kind, Struct):
            yield from _variables(kind, (*parent, name))
        elif name not in ("named", "servers"):
            yield (*parent, name), kind


def _with_variables(data: dict[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    known = {_PREFIX + "_".join(path).upper(): (path, kind) for path, kind in _variables(Config)}
    ignored = _OTHER_VARIABLES | _secret_variables(data)
    for variable, value in sorted(environment.items()):
        if not variable.startswith(_PREFIX) or variable in ignored:
            continue
        if variable not in known:
            raise ConfigError(f"{variable}: unknown environment variable{did_you_mean(variable, known)}")
        path, kind = known[variable]
        try:
            data = _with_value(data, path, msgspec.convert(_parse_variable(value, kind), kind, strict=False))
        except (msgspec.ValidationError, yaml.YAMLError) as error:
            raise ConfigError(f"{variable}: {error}{valid_values_hint(kind)}") from error
    return data


def _parse_variable(value: str, kind: Any) -> object:  # noqa: ANN401 - any type
    """Lists and mappings are written as in the file, in one line: `{gpt-*: coder}`."""
    inner = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return yaml.safe_load(value) if get_origin(inner) in {dict, list} else value


def _secret_variables(data: Mapping[str, Any]) -> set[object]:
    """Variables that hold upstream API keys and sandbox tokens; the configuration chooses their names."""
    sections = [data.get(name) for name in ("models", "providers")]
    entries = [entry for one in sections if isinstance(one, dict) for entry in cast("dict[str, object]", one).values()]
    mappings = [cast("dict[str, object]", entry) for entry in entries if isinstance(entry, dict)]
    found = {entry.get(key) for entry in mappings for key in ("api_key_env", "sandbox_token_env")}
    _, servers = _without(dict(data), _MCP_SERVERS)
    for server in cast("dict[str, object]", servers).values() if isinstance(servers, dict) else ():
        with contextlib.suppress(msgspec.ValidationError):  # reported when the servers are converted
            found |= msgspec.convert(server, McpServerSettings).variables
    return found


def _with_value(data: Mapping[str, Any], path: tuple[str, ...], value: object) -> dict[str, Any]:
    first, *rest = path
    if not rest:
        return {**data, first: value}
    inner = data.get(first)
    below = cast("dict[str, Any]", inner) if isinstance(inner, dict) else {}
    return {**data, first: _with_value(below, tuple(rest), value)}
