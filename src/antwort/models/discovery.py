"""Finds a model where the configuration names none, and says whether a model that is named can be used.

In this order: an upstream that `OPENAI_API_KEY` or `OPENAI_BASE_URL` names, a server of this machine at the port that
its kind usually has, the embedded model. A server is asked for its models, once, and not for long. What answers as
antwort does is passed by: it would ask us, and we would ask it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import httpx2
import msgspec
from msgspec import Struct

from antwort.api.items import read
from antwort.config import ChatCompletionsModel, EmbeddedModel, ModelSettings, ModelsSettings, ResponsesModel
from antwort.engine.ports import ChosenModel, ModelFault, ModelRequest

KEY: Final = "OPENAI_API_KEY"
ADDRESS: Final = "OPENAI_BASE_URL"
MODEL: Final = "OPENAI_MODEL"
"""Which of an upstream's models is the default."""
_OPENAI: Final = "https://api.openai.com/v1"
_OURS: Final = "antwort"
_SHORT: Final = 0.5
_LONG: Final = 5.0
_MOST_BYTES: Final = 4 * 1024 * 1024
_MOST_NAMES: Final = 500
_NOT_FOR_TALKING: Final = (
    "embed", "whisper", "tts", "dall-e", "moderation", "image", "audio", "realtime", "transcribe", "rerank", "sora",
    "babbage", "davinci",
)  # fmt: skip


class Place(Struct, frozen=True):
    """Where a kind of server usually listens."""

    kind: str
    port: int

    @property
    def base_url(self) -> str:
        """Its address on this machine."""
        return f"http://127.0.0.1:{self.port}/v1"


PLACES: Final = (Place("Ollama", 11434), Place("llama.cpp", 8080), Place("vLLM", 8000), Place("LM Studio", 1234))


class Found(Struct, frozen=True):
    """The models to serve, and why these."""

    models: ModelsSettings
    why: str


class Silent(Exception):
    """Nobody there has models for us. Says what came instead."""


async def find_models(
    settings: ModelsSettings,
    environment: Mapping[str, str],
    *,
    own_port: int | None = None,
    places: Sequence[Place] = PLACES,
) -> Found:
    """What the configuration names; else what there is, if it may be looked for."""
    if settings.named:
        return Found(settings, "as the configuration says")
    if not settings.discover:
        return Found(settings, "the configuration names none, and `models.discover` is off")
    passed: list[str] = []
    named = await _of_the_environment(environment, own_port, passed)
    if named is None:
        named = await _of_this_machine([place for place in places if place.port != own_port])
    if named is None:
        named = await asyncio.to_thread(_embedded, environment, passed)
    if named is None:
        return Found(settings, "; ".join(passed))
    models, why = named
    default = _default(list(models), environment.get(MODEL))
    why = "; ".join([*passed, why])
    return Found(msgspec.structs.replace(settings, named=models, default=default), why)


_Named = tuple[dict[str, ModelSettings], str]


async def _of_the_environment(environment: Mapping[str, str], own_port: int | None, passed: list[str]) -> _Named | None:
    key, address = environment.get(KEY), environment.get(ADDRESS)
    if not key and not address:
        return None
    base, said = (address or _OPENAI).rstrip("/"), ADDRESS if address else KEY
    variable = KEY if key else None
    if own_port is not None and _is_here(base, own_port):
        passed.append(f"{said} is the address of this server itself")
        return None
    try:
        names = await names_at(base, key, _LONG)
    except Silent as silent:
        passed.append(f"{said} is set, but {_host(base)} {silent}")
        return None
    why = f"{said} is set, and {_host(base)} answers"
    if address:
        return {name: ChatCompletionsModel(base_url=base, model=name, api_key_env=variable) for name in names}, why
    return {name: ResponsesModel(base_url=base, model=name, api_key_env=variable) for name in names}, why


async def _of_this_machine(places: Sequence[Place]) -> _Named | None:
    """All are asked at once; the first of the list that has models is taken."""
    asked = await asyncio.gather(*(names_at(place.base_url, None, _SHORT) for place in places), return_exceptions=True)
    for place, names in zip(places, asked, strict=True):
        if isinstance(names, BaseException):
            if not isinstance(names, Silent):
                raise names
            continue
        models = {name: ChatCompletionsModel(base_url=place.base_url, model=name) for name in names}
        return cast("dict[str, ModelSettings]", models), f"{place.kind} answers on port {place.port}"
    return None


def _embedded(environment: Mapping[str, str], passed: list[str]) -> _Named | None:
    try:
        from antwort.models import embedded  # noqa: PLC0415 - needs an extra, which not everybody has
    except ImportError:
        passed.append("there is no other, and the extra `model`, which brings one, is not installed")
        return None
    if not embedded.available():
        passed.append("there is no other, and llama.cpp is not installed; the extra `model` brings it")
        return None
    try:
        embedded.find(None, embedded.Cache(environment=environment))
    except embedded.WeightsError as error:
        passed.append(f"there is no other. {error}")
        return None
    return {embedded.DEFAULT: EmbeddedModel()}, "there is no other, so the embedded one answers"


def _default(names: Sequence[str], wanted: str | None) -> str:
    if wanted is not None and wanted in names:
        return wanted
    talking = (name for name in names if not any(word in name.lower() for word in _NOT_FOR_TALKING))
    return next(talking, names[0])


# ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def names_at(base_url: str, api_key: str | None, patience: float) -> list[str]:
    """The models of a server; `Silent` where there are none for us."""
    return await asyncio.to_thread(_ask, base_url, api_key, patience)  # to make a client reads files


def _ask(base_url: str, api_key: str | None, patience: float) -> list[str]:
    headers = {"accept": "application/json", "accept-encoding": "identity", "user-agent": _OURS}
    if api_key:
        headers["authorization"] = f"Bearer {api_key}"
    until = time.monotonic() + patience
    body = bytearray()
    try:
        with (
            httpx2.Client(headers=headers, timeout=patience, trust_env=not _is_loopback(base_url)) as client,
            client.stream("GET", f"{base_url}/models") as response,
        ):
            for chunk in response.iter_raw():
                body += chunk
                if len(body) > _MOST_BYTES or time.monotonic() > until:
                    raise Silent("sends too much, or too slowly")
    except (httpx2.TransportError, httpx2.InvalidURL, httpx2.StreamError) as error:
        raise Silent("does not answer") from error
    if not response.is_success:
        raise Silent(f"answers {response.status_code}")
    return _names(bytes(body))


def _names(body: bytes) -> list[str]:
    try:
        told: Any = msgspec.json.decode(body)
        listed: list[dict[str, Any]] = msgspec.convert(told["data"], list[dict[str, Any]])
    except (msgspec.MsgspecError, UnicodeError, RecursionError, KeyError, TypeError) as error:
        raise Silent("has no list of models") from error
    if any(one.get("owned_by") == _OURS for one in listed):
        raise Silent("is another antwort")
    names = [name for one in listed if isinstance(name := one.get("id"), str) and name]
    if not names:
        raise Silent("has no models")
    return names[:_MOST_NAMES]


def _host(base_url: str) -> str:
    try:
        return httpx2.URL(base_url).netloc.decode(errors="replace") or base_url
    except httpx2.InvalidURL:
        return base_url


def _is_loopback(base_url: str) -> bool:
    try:
        return httpx2.URL(base_url).host in ("127.0.0.1", "::1", "localhost")
    except httpx2.InvalidURL:
        return False


def _is_here(base_url: str, port: int) -> bool:
    return _is_loopback(base_url) and httpx2.URL(base_url).port == port


# ── looking at one ───────────────────────────────────────────────────────────────────────────────────────────────────


class State(Struct, frozen=True, kw_only=True):
    """Whether a model can be used, and what was seen."""

    works: bool
    seen: str


async def look_at(chosen: ChosenModel, settings: ModelSettings, environment: Mapping[str, str]) -> State:
    """Ask a server for its models, start an embedded one. Nothing that would cost money."""
    if isinstance(settings, (ChatCompletionsModel, ResponsesModel)):
        key = environment.get(settings.api_key_env) if settings.api_key_env else None
        try:
            names = await names_at(settings.base_url.rstrip("/"), key, _LONG)
        except Silent as silent:
            return State(works=False, seen=f"{_host(settings.base_url)} {silent}")
        known = chosen.upstream_name in names
        listed = "and has it" if known else f"and does not list {chosen.upstream_name}"
        return State(works=known, seen=f"{_host(settings.base_url)} answers {listed}")
    if isinstance(settings, EmbeddedModel):
        request = ModelRequest(model=chosen.upstream_name, items=[read({"role": "user", "content": "Hello"})])
        try:
            count = await chosen.model.count_tokens(request)
        except ModelFault as fault:
            return State(works=False, seen=fault.message)
        return State(works=True, seen=f"was started and reads: a greeting is {count} tokens")
    return State(works=True, seen="answers from its script")
