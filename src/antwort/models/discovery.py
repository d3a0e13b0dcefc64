"""Model discovery: finds models when the configuration names none. Also checks whether a configured model is usable.

Without this module, a server without configuration has no models: neither from `OPENAI_BASE_URL` or `OPENAI_API_KEY`,
nor from Ollama, llama.cpp, vLLM or LM Studio on this machine, nor the embedded one. That is also the order of the
search. Each server is sent one `GET /models` with a short timeout. Another antwort is skipped: two that found each
other would forward every request in a circle.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import httpx2
import msgspec
from msgspec import Struct

from antwort.api.items import read
from antwort.config import ChatCompletionsModel, EmbeddedModel, ModelSettings, ModelsSettings, ResponsesModel
from antwort.engine.ports import ChosenModel, ModelFault, ModelRequest
from antwort.extras import explain_missing, install_command
from antwort.net.origin import is_loopback

API_KEY_VARIABLE: Final = "OPENAI_API_KEY"
BASE_URL_VARIABLE: Final = "OPENAI_BASE_URL"
MODEL_VARIABLE: Final = "OPENAI_MODEL"
"""Selects the default among the discovered models."""
_OPENAI_BASE_URL: Final = "https://api.openai.com/v1"
_OWN_NAME: Final = "antwort"
_LOCAL_TIMEOUT: Final = 0.5
_REMOTE_TIMEOUT: Final = 5.0
_MAX_BYTES: Final = 4 * 1024 * 1024
_MAX_MODELS: Final = 500
_NON_CHAT_WORDS: Final = (
    "embed", "whisper", "tts", "dall-e", "moderation", "image", "audio", "realtime", "transcribe", "rerank", "sora",
    "babbage", "davinci",
)  # fmt: skip


class LocalServer(Struct, frozen=True):
    """A kind of model server and its usual port on this machine."""

    kind: str
    port: int

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


LOCAL_SERVERS: Final = (
    LocalServer("Ollama", 11434),
    LocalServer("llama.cpp", 8080),
    LocalServer("vLLM", 8000),
    LocalServer("LM Studio", 1234),
)


class Discovery(Struct, frozen=True):
    """The models to serve, and the reason, for the operator."""

    models: ModelsSettings
    reason: str


class NoModels(Exception):
    """A server has no usable models. The message continues a sentence that begins with the server's address."""


_Models = dict[str, ModelSettings]


async def discover_models(
    settings: ModelsSettings,
    environment: Mapping[str, str],
    *,
    own_port: int | None = None,
    local_servers: Sequence[LocalServer] = LOCAL_SERVERS,
) -> Discovery:
    """The configured models; if there are none and `models.discover` is on, those of the first source that has any."""
    if settings.named:
        return Discovery(settings, "from the configuration")
    if not settings.discover:
        return Discovery(settings, "the configuration names none, and `models.discover` is off")
    reasons: list[str] = []
    models = (
        await _from_environment(environment, own_port, reasons)
        or await _from_local_servers([server for server in local_servers if server.port != own_port], reasons)
        or await asyncio.to_thread(_from_embedded, environment, reasons)
    )
    if models:
        default = _choose_default(list(models), environment.get(MODEL_VARIABLE))
        # The configuration names no model, so its clients cannot be expected to know the names of these.
        sends_unknown = settings.default_for_unknown is not False
        settings = msgspec.structs.replace(settings, named=models, default=default, default_for_unknown=sends_unknown)
    return Discovery(settings, "; ".join(reasons))


async def _from_environment(environment: Mapping[str, str], own_port: int | None, reasons: list[str]) -> _Models | None:
    api_key, address = environment.get(API_KEY_VARIABLE), environment.get(BASE_URL_VARIABLE)
    if not api_key and not address:
        return None
    base_url = (address or _OPENAI_BASE_URL).rstrip("/")
    variable = BASE_URL_VARIABLE if address else API_KEY_VARIABLE
    if own_port is not None and _is_loopback(base_url) and httpx2.URL(base_url).port == own_port:
        reasons.append(f"{variable} is the address of this server itself")
        return None
    try:
        names = await list_model_names(base_url, api_key, _REMOTE_TIMEOUT)
    except NoModels as error:
        reasons.append(f"{variable} is set, but {_host(base_url)} {error}")
        return None
    reasons.append(f"{variable} is set, and {_host(base_url)} answers")
    kind = ChatCompletionsModel if address else ResponsesModel
    key_variable = API_KEY_VARIABLE if api_key else None
    return {name: kind(base_url=base_url, model=name, api_key_env=key_variable) for name in names}


async def _from_local_servers(servers: Sequence[LocalServer], reasons: list[str]) -> _Models | None:
    """Queries all servers at once; the first in the list that has models is used."""

    async def names_of(server: LocalServer) -> list[str]:
        try:
            return await list_model_names(server.base_url, None, _LOCAL_TIMEOUT)
        except NoModels:
            return []

    for server, names in zip(servers, await asyncio.gather(*map(names_of, servers)), strict=True):
        if names:
            reasons.append(f"{server.kind} answers on port {server.port}")
            return {name: ChatCompletionsModel(base_url=server.base_url, model=name) for name in names}
    return None


def _from_embedded(environment: Mapping[str, str], reasons: list[str]) -> _Models | None:
    try:
        from antwort.models import embedded  # noqa: PLC0415 - needs an optional extra
    except ModuleNotFoundError as error:
        reasons.append(f"no other model found, and the embedded one {explain_missing(error, 'model')}")
        return None
    if not embedded.available():
        reasons.append(f"no other model found, and the embedded one needs llama.cpp: {install_command('model')}")
        return None
    try:
        embedded.find_weights(None, embedded.WeightsCache(environment=environment))
    except embedded.WeightsError as error:
        reasons.append(f"no other model found. {error}")
        return None
    reasons.append("no other model found, so the embedded one is used")
    return {embedded.DEFAULT_MODEL: EmbeddedModel()}


def _choose_default(names: Sequence[str], wanted: str | None) -> str:
    if wanted is not None and wanted in names:
        return wanted
    chat_models = (name for name in names if not any(word in name.lower() for word in _NON_CHAT_WORDS))
    return next(chat_models, names[0])


# ── GET /models ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def list_model_names(base_url: str, api_key: str | None, seconds: float) -> list[str]:
    """The names of a server's models; `NoModels` if there are none, or not within the time limit."""
    return await asyncio.to_thread(_fetch_model_names, base_url, api_key, seconds)  # creating a client reads files


def _fetch_model_names(base_url: str, api_key: str | None, seconds: float) -> list[str]:
    headers = {"accept": "application/json", "accept-encoding": "identity", "user-agent": _OWN_NAME}
    if api_key:
        headers["authorization"] = f"Bearer {api_key}"
    deadline = time.monotonic() + seconds
    body = bytearray()
    try:
        with (
            httpx2.Client(headers=headers, timeout=seconds, trust_env=not _is_loopback(base_url)) as client,
            client.stream("GET", f"{base_url}/models") as response,
        ):
            for chunk in response.iter_raw():
                body += chunk
                if len(body) > _MAX_BYTES or time.monotonic() > deadline:
                    raise NoModels("sends too much, or too slowly")
    except (httpx2.TransportError, httpx2.InvalidURL, httpx2.StreamError) as error:
        raise NoModels("does not answer") from error
    if not response.is_success:
        raise NoModels(f"answers {response.status_code}")
    return _parse_model_names(bytes(body))


def _parse_model_names(body: bytes) -> list[str]:
    try:
        decoded: Any = msgspec.json.decode(body)
        models: list[dict[str, Any]] = msgspec.convert(decoded["data"], list[dict[str, Any]])
    except (msgspec.MsgspecError, UnicodeError, RecursionError, KeyError, TypeError) as error:
        raise NoModels("has no list of models") from error
    if any(model.get("owned_by") == _OWN_NAME for model in models):
        raise NoModels("is another antwort")
    names = [name for model in models if isinstance(name := model.get("id"), str) and name]
    if not names:
        raise NoModels("has no models")
    return names[:_MAX_MODELS]


def _host(base_url: str) -> str:
    try:
        return httpx2.URL(base_url).netloc.decode(errors="replace") or base_url
    except httpx2.InvalidURL:
        return base_url


def _is_loopback(base_url: str) -> bool:
    try:
        return is_loopback(httpx2.URL(base_url).host)
    except httpx2.InvalidURL:
        return False


# ── check of one model ───────────────────────────────────────────────────────────────────────────────────────────────


class ModelCheck(Struct, frozen=True, kw_only=True):
    """Whether a model is usable, and why, for the operator."""

    is_usable: bool
    detail: str


async def check_model(chosen: ChosenModel, settings: ModelSettings, environment: Mapping[str, str]) -> ModelCheck:
    """Query a server's list of models, or start the embedded model. Sends no prompt to a paid upstream."""
    if isinstance(settings, (ChatCompletionsModel, ResponsesModel)):
        return await _check_upstream(chosen.upstream_name, settings, environment)
    if isinstance(settings, EmbeddedModel):
        request = ModelRequest(model=chosen.upstream_name, items=[read({"role": "user", "content": "Hello"})])
        try:
            count = await chosen.model.count_tokens(request)
        except ModelFault as fault:
            return ModelCheck(is_usable=False, detail=fault.message)
        return ModelCheck(is_usable=True, detail=f"started: a test prompt has {count} tokens")
    return ModelCheck(is_usable=True, detail="answers from its script")


async def _check_upstream(
    model: str, settings: ChatCompletionsModel | ResponsesModel, environment: Mapping[str, str]
) -> ModelCheck:
    host = _host(settings.base_url)
    api_key = environment.get(settings.api_key_env) if settings.api_key_env else None
    try:
        names = await list_model_names(settings.base_url.rstrip("/"), api_key, _REMOTE_TIMEOUT)
    except NoModels as error:
        return ModelCheck(is_usable=False, detail=f"{host} {error}")
    if model in names:
        return ModelCheck(is_usable=True, detail=f"{host} answers and has it")
    return ModelCheck(is_usable=False, detail=f"{host} answers and does not list {model}")
