"""Handlers of /v1/models for clients of this wire: the models and their exact aliases, page by page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from antwort.api.errors import ApiError, invalid
from antwort.api.requests import MAX_MODEL_NAME
from antwort.http.bodies import json_answer
from antwort.http.paging import parse_integer
from antwort.http.services import services_of
from antwort.models.registry import ModelRegistry

_DEFAULT_LIMIT, _MAX_LIMIT = 20, 1000
_UNKNOWN_TIME = "1970-01-01T00:00:00Z"
"""Stands for an unknown time, as on Anthropic's API."""


class ModelInfo(Struct, kw_only=True):
    """A model."""

    type: Literal["model"] = "model"
    id: str
    display_name: str
    created_at: str = _UNKNOWN_TIME
    max_input_tokens: int | UnsetType = UNSET
    """Set if the context window is known."""


class ModelInfoPage(Struct):
    """A page of models."""

    data: list[ModelInfo]
    has_more: bool
    first_id: str | None
    last_id: str | None


async def list_models(request: Request) -> HttpResponse:
    """List the models."""
    registry, limit = services_of(request).models, parse_integer(request, "limit", _DEFAULT_LIMIT)
    if not 1 <= limit <= _MAX_LIMIT:
        raise invalid(f"Input should be between 1 and {_MAX_LIMIT}", param="limit")
    names = list(registry.listed_names())
    after, before = request.query_params.get("after_id"), request.query_params.get("before_id")
    if before is not None:
        left = names[: _position(names, before, "before_id")]
        shown, has_more = left[-limit:], len(left) > limit
    else:
        left = names if after is None else names[_position(names, after, "after_id") + 1 :]
        shown, has_more = left[:limit], len(left) > limit
    data = [_model(registry, name) for name in shown]
    return json_answer(ModelInfoPage(data, has_more, shown[0] if shown else None, shown[-1] if shown else None))


def _position(names: Sequence[str], name: str, param: str) -> int:
    try:
        return names.index(name)
    except ValueError as error:
        raise invalid(f"There is no model '{name[:MAX_MODEL_NAME]}'.", param=param) from error


async def retrieve(request: Request) -> HttpResponse:
    """Retrieve a model by a name that a request may use."""
    name = request.path_params["model"]
    if len(name) > MAX_MODEL_NAME:
        raise ApiError(404, f"model: more than {MAX_MODEL_NAME} characters", code="model_not_found")
    return json_answer(_model(services_of(request).models, name))


def _model(registry: ModelRegistry, name: str) -> ModelInfo:
    window = registry.find(name).context_window
    return ModelInfo(id=name, display_name=name, max_input_tokens=UNSET if window is None else window)
