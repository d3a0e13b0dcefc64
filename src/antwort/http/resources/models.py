"""Handlers of /v1/models: list the configured models and their aliases, and retrieve one by any accepted name."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from antwort.api.errors import ApiError
from antwort.api.objects import ModelList, ModelObject
from antwort.api.requests import MAX_MODEL_NAME
from antwort.http.bodies import json_answer
from antwort.http.openapi import ApiRoute, Operation
from antwort.http.services import services_of
from antwort.http.wires.messages import models as messages_models
from antwort.http.wires.messages.errors import speaks_messages


async def list_models(request: Request) -> HttpResponse:
    """List the models and their exact aliases."""
    if speaks_messages(request):
        return await messages_models.list_models(request)
    names = services_of(request).models.listed_names()
    return json_answer(ModelList(data=[ModelObject(id=name) for name in names]))


async def retrieve(request: Request) -> HttpResponse:
    """Retrieve a model by a name that a request may use. `id` is that name, as in the `model` of a response."""
    if speaks_messages(request):
        return await messages_models.retrieve(request)
    name = request.path_params["model"]
    if len(name) > MAX_MODEL_NAME:
        message = f"The model does not exist: its name has more than {MAX_MODEL_NAME} characters."
        raise ApiError(404, message, code="model_not_found", param="model")
    try:
        services_of(request).models.find(name)
    except ApiError as error:
        raise ApiError(404, error.message, code=error.code, param=error.param) from error
    return json_answer(ModelObject(id=name))


_MODELS = "/v1/models"

routes = [
    ApiRoute("GET", _MODELS, list_models, Operation("listModels", returns=ModelList, links={"model": "/data/0/id"})),
    ApiRoute("GET", _MODELS + "/{model:path}", retrieve, Operation("getModel", returns=ModelObject)),
]
