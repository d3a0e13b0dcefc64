"""Handlers of /v1/models: list and retrieve the configured models."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from antwort.api.errors import ApiError
from antwort.api.objects import ModelList, ModelObject
from antwort.http.bodies import json_answer
from antwort.http.openapi import ApiRoute, Operation
from antwort.http.services import services_of


async def list_models(request: Request) -> HttpResponse:
    """List the models."""
    names = services_of(request).models.names()
    return json_answer(ModelList(data=[ModelObject(id=name) for name in names]))


async def retrieve(request: Request) -> HttpResponse:
    """Retrieve a model."""
    name = request.path_params["model"]
    if name not in services_of(request).models.names():
        raise ApiError(404, f"The model '{name}' does not exist.", code="model_not_found", param="model")
    return json_answer(ModelObject(id=name))


_MODELS = "/v1/models"

routes = [
    ApiRoute("GET", _MODELS, list_models, Operation("listModels", returns=ModelList, links={"model": "/data/0/id"})),
    ApiRoute("GET", _MODELS + "/{model:path}", retrieve, Operation("getModel", returns=ModelObject)),
]
