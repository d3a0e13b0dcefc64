"""Registry of the configured models: opens them at start, finds them by name, closes them together."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from antwort.api.errors import ApiError
from antwort.config import (
    ChatCompletionsModel,
    ConfigError,
    EmbeddedModel,
    ModelSettings,
    ModelsSettings,
    ResponsesModel,
    ScriptedModel,
)
from antwort.engine.ports import ChosenModel, Model
from antwort.extras import explain_missing, install_command
from antwort.models.aliases import Aliases
from antwort.models.chat.completions import ChatCompletions
from antwort.models.chat.messages import ChatDialect
from antwort.models.circuit_breaker import CircuitBreakers
from antwort.models.instrumentation import Instrumentation
from antwort.models.responses.compaction import ResponsesCompaction
from antwort.models.responses.model import Responses
from antwort.models.retry import RetryingCompaction, RetryingModel, RetryPolicy
from antwort.models.scripted.model import Scripted
from antwort.models.scripted.script import Script, ScriptError, load_script
from antwort.models.upstream import Upstream
from antwort.telemetry import Metrics

_MAX_LISTED = 20


class ModelRegistry:
    """Implements the `Models` port.

    A name is looked up among the models, then among the aliases; then it is unknown. A request without a name gets the
    default model, and one with an unknown name does if `default_for_unknown` is set.
    """

    def __init__(
        self,
        models: Mapping[str, ChosenModel],
        *,
        default: str | None,
        default_for_unknown: bool,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self._models = dict(models)
        self._aliases = Aliases(aliases or {})
        self._default = default
        self._default_for_unknown = default_for_unknown

    def find(self, name: str | None) -> ChosenModel:
        if (model := self.resolve(name)) is not None:
            return self._models[model]
        if name is None:
            message = "Missing required parameter: 'model'."
            raise ApiError(400, message, code="missing_required_parameter", param="model")
        raise ApiError(400, self._describe_unknown(name), code="model_not_found", param="model")

    def resolve(self, name: str | None) -> str | None:
        """The name in the configuration of the model that `find` returns; None where it raises an error."""
        if name is None:
            return self._default
        if name in self._models:
            return name
        return self._aliases.resolve(name) or (self._default if self._default_for_unknown else None)

    def names(self) -> list[str]:
        return list(self._models)

    def listed_names(self) -> list[str]:
        """The names that `GET /v1/models` lists: the models and the exact aliases."""
        return [*self._models, *self._aliases.names()]

    @property
    def default_for_unknown(self) -> bool:
        return self._default_for_unknown

    @property
    def default(self) -> str | None:
        return self._default

    def _describe_unknown(self, name: str) -> str:
        message = f"The requested model '{name}' does not exist."
        if self._default is None:
            return f"{message} This server has no models."
        names = self.listed_names()
        more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
        return (
            f"{message} This server has: {', '.join(names[:_MAX_LISTED])}{more}. In its configuration, "
            f"`models.aliases` maps further names to a model, and `models.default_for_unknown: true` sends all unknown "
            f"names to the default model, '{self._default}'."
        )

    async def aclose(self) -> None:
        """Close all models."""
        for chosen in self._models.values():
            await chosen.model.aclose()


class _Backend(Struct, frozen=True, kw_only=True):
    """An open model without retries, and the properties that its settings do not have."""

    model: Model
    encrypts_reasoning: bool = False
    summarizes_reasoning: bool = False
    biases_logits: bool = False
    compaction: ResponsesCompaction | None = None


def open_models(
    settings: ModelsSettings, metrics: Metrics, environment: Mapping[str, str] = os.environ
) -> ModelRegistry:
    """Open every configured model. Wrong settings raise `ConfigError` here, not at the first request."""
    models: dict[str, ChosenModel] = {}
    for name, named in settings.named.items():
        instrumentation = Instrumentation(metrics, name=name, kind=kind_of(named))
        backend = _open_backend(name, named, environment)
        model = _with_retries(name, backend.model, named, instrumentation)
        models[name] = ChosenModel(
            name,
            model,
            upstream_name=getattr(named, "model", None) or name,
            reads_files=_reads_files(named),
            reads_images=_reads_images(named),
            reads_file_urls=not isinstance(named, (ChatCompletionsModel, EmbeddedModel)),
            encrypts_reasoning=backend.encrypts_reasoning,
            summarizes_reasoning=backend.summarizes_reasoning,
            biases_logits=backend.biases_logits,
            context_window=named.context if isinstance(named, EmbeddedModel) else None,
            compaction=RetryingCompaction(backend.compaction, model) if backend.compaction else None,
        )
    default = settings.default or next(iter(models), None)
    sends_unknown = len(models) <= 1 if settings.default_for_unknown is None else settings.default_for_unknown
    return ModelRegistry(models, default=default, default_for_unknown=sends_unknown, aliases=settings.aliases)


def kind_of(settings: ModelSettings) -> str:
    """The model's `kind`, as in the configuration."""
    return str(settings.__struct_config__.tag)


def _reads_files(settings: ModelSettings) -> bool:
    if isinstance(settings, EmbeddedModel):
        return False
    return settings.files if isinstance(settings, ChatCompletionsModel) else True


def _reads_images(settings: ModelSettings) -> bool:
    if isinstance(settings, EmbeddedModel):
        return False
    return settings.images if isinstance(settings, ChatCompletionsModel) else True


def _with_retries(name: str, model: Model, settings: ModelSettings, instrumentation: Instrumentation) -> RetryingModel:
    if isinstance(settings, ScriptedModel):  # the faults of a script are part of it, so they are not retried
        policy, breakers, timeout = RetryPolicy(attempts=1), CircuitBreakers(threshold=math.inf), None
    else:
        policy = RetryPolicy(
            attempts=settings.attempts,
            base_backoff=settings.base_backoff,
            max_backoff=settings.max_backoff,
            max_retry_after=settings.max_retry_after,
        )
        threshold = settings.breaker_failures or math.inf
        breakers = CircuitBreakers(
            threshold=threshold, pause=settings.breaker_pause, max_wait=settings.breaker_wait, name=name
        )
        timeout = settings.timeout
    return RetryingModel(
        model, instrumentation=instrumentation, policy=policy, breakers=breakers, total_timeout=timeout
    )


def _open_backend(name: str, settings: ModelSettings, environment: Mapping[str, str]) -> _Backend:
    match settings:
        case EmbeddedModel():
            return _Backend(model=_open_embedded(name, settings, environment), biases_logits=True)
        case ChatCompletionsModel():
            upstream = _open_upstream(name, settings, environment)
            return _Backend(model=_chat_completions(upstream, settings), biases_logits=True)
        case ResponsesModel():
            return _responses(_open_upstream(name, settings, environment), settings)
        case ScriptedModel():
            script = _load_script(name, settings)
            # It keeps no requests: a server runs for long.
            return _Backend(model=Scripted(script, max_requests=0), encrypts_reasoning=_has_sealed_step(script))


def _load_script(name: str, settings: ScriptedModel) -> Script:
    try:
        return load_script(Path(settings.script))
    except (OSError, UnicodeError, ScriptError) as error:
        raise ConfigError(f"models.{name}.script: {error}") from error


def _has_sealed_step(script: Script) -> bool:
    return any(isinstance(step.sealed, str) for answer in script.answers for step in answer.reply)


def _open_embedded(name: str, settings: EmbeddedModel, environment: Mapping[str, str]) -> Model:
    try:
        from antwort.models import embedded  # noqa: PLC0415 - needs an optional extra
    except ModuleNotFoundError as error:
        raise ConfigError(f"models.{name}: an embedded model {explain_missing(error, 'model')}") from error
    if not embedded.available():
        raise ConfigError(f"models.{name}: llama.cpp is missing: {install_command('model')}")
    try:
        weights = embedded.find_weights(settings.model, embedded.WeightsCache(environment=environment))
    except embedded.WeightsError as error:
        raise ConfigError(f"models.{name}: {error}") from error
    return embedded.Embedded(
        embedded.Supervisor(weights, context=settings.context, parallel=settings.parallel, threads=settings.threads)
    )


def _open_upstream(
    name: str, settings: ChatCompletionsModel | ResponsesModel, environment: Mapping[str, str]
) -> Upstream:
    api_key = _api_key(name, settings.api_key_env, environment)
    try:
        return Upstream(
            settings.base_url, name=name, api_key=api_key, headers=settings.headers, ca_file=settings.ca_file
        )
    except OSError as error:
        raise ConfigError(f"models.{name}.ca_file: cannot load '{settings.ca_file}': {error}") from error
    except (ImportError, ValueError) as error:
        raise ConfigError(f"models.{name}.base_url: the proxy of the environment is not usable: {error}") from error


def _responses(upstream: Upstream, settings: ResponsesModel) -> _Backend:
    model, replay_reasoning = settings.model, settings.replay_reasoning
    compaction = ResponsesCompaction(
        upstream,
        model=model,
        replay_reasoning=replay_reasoning,
        is_supported=True if settings.compaction == "upstream" else None,
    )
    return _Backend(
        model=Responses(upstream, model=model, replay_reasoning=replay_reasoning),
        encrypts_reasoning=True,
        summarizes_reasoning=True,
        compaction=None if settings.compaction == "server" else compaction,
    )


def _chat_completions(upstream: Upstream, settings: ChatCompletionsModel) -> ChatCompletions:
    dialect = ChatDialect(
        developer_role=settings.developer_role,
        replay_reasoning=settings.replay_reasoning,
        max_tokens_field=settings.max_tokens_field,
        files=settings.files,
        extra=settings.extra,
    )
    return ChatCompletions(upstream, model=settings.model, dialect=dialect, tokenizer=settings.tokenizer)


def _api_key(name: str, variable: str | None, environment: Mapping[str, str]) -> str | None:
    if variable is None:
        return None
    if not environment.get(variable):
        raise ConfigError(f"models.{name}.api_key_env: the variable {variable} is not set")
    return environment[variable]
