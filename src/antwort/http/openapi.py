"""OpenAPI: the route type that carries its `Operation`, and the `/openapi.json` document built from those routes.

Schemas come from the msgspec structs that the handlers decode and encode.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from antwort.api import items
from antwort.api.errors import ErrorEnvelope
from antwort.api.events import EVENTS
from antwort.api.ids import MAX_ID_LENGTH
from antwort.api.items import ReasoningText, SummaryText
from antwort.api.tools import AutoContainer
from antwort.api.validation.ids import item_id_prefix
from antwort.api.validation.items import given_fields
from antwort.http.bodies import json_answer

Schema: TypeAlias = dict[str, Any]

JSON, EVENT_STREAM, OCTET_STREAM = "application/json", "text/event-stream", "application/octet-stream"
BINARY: Schema = {"type": "string", "format": "binary"}

_REF = "#/components/schemas/{name}"
_EMPTY: Mapping[str, Any] = MappingProxyType({})


class Operation(NamedTuple):
    """The OpenAPI operation of a route. Its summary is the first sentence of the handler's docstring."""

    operation_id: str
    body: Any = None
    """The struct of the JSON request body."""
    returns: Any = None
    """The struct of the JSON response body."""
    query: Mapping[str, Schema] = _EMPTY
    content_types: tuple[str, ...] = (JSON,)
    """Of the response."""
    links: Mapping[str, str] = _EMPTY
    """For OpenAPI links: path parameters of other operations, with the JSON pointer of each value in the response."""
    form: Schema | None = None
    """The schema of a multipart request body."""
    raw: str | None = None
    """The content type of a binary request body."""
    public: bool = False
    """Whether the operation needs no API key."""
    events: tuple[type[Any], ...] = EVENTS
    """The server-sent events, where `content_types` has `text/event-stream`."""
    error: Any = ErrorEnvelope
    """The struct of the body of an error."""


class ApiRoute(Route):
    """A Starlette route of one method with its OpenAPI operation: no route of the API is undocumented."""

    def __init__(self, method: str, path: str, endpoint: Any, operation: Operation) -> None:  # noqa: ANN401 - as Starlette declares it
        super().__init__(path, endpoint, methods=[method])
        self.method = method.lower()
        self.operation = operation

    @property
    def documented_path(self) -> str:
        """The path without Starlette's converters: `{model:path}` is `{model}`."""
        return re.sub(r":\w+}", "}", self.path)

    @property
    def summary(self) -> str:
        """The first sentence of the handler's docstring."""
        return (self.endpoint.__doc__ or "").partition(".")[0]

    @property
    def parameters(self) -> list[str]:
        """The names of the path parameters."""
        return [part.strip("{}") for part in self.documented_path.split("/") if part.startswith("{")]


def openapi_route(routes: Sequence[ApiRoute]) -> Route:
    """`GET /openapi.json` for these routes. The document is built with the first request."""
    built = cache(lambda: document(routes))

    async def openapi(request: Request) -> Response:
        """The OpenAPI document."""
        del request
        return json_answer(built())

    return Route("/openapi.json", openapi, methods=["GET"])


def document(routes: Sequence[ApiRoute]) -> Schema:
    """The OpenAPI document: every operation of `routes`, and the schemas of their bodies."""
    operations = [route.operation for route in routes]
    bodies = [body for operation in operations for body in (operation.body, operation.returns) if body is not None]
    events = [event for operation in operations for event in operation.events]
    errors = [operation.error for operation in operations]
    types = {repr(one): one for one in (*bodies, *errors, *events, *_item_types())}
    schemas, components = msgspec.json.schema_components(types.values(), ref_template=_REF)
    schema_by_type = dict(zip(types, schemas, strict=True))
    paths: dict[str, Schema] = {}
    for route in routes:
        paths.setdefault(route.documented_path, {})[route.method] = _operation_object(route, routes, schema_by_type)
    return {
        "openapi": "3.1.0",
        "info": {"title": "antwort", "version": "1", "description": "OpenAI's Responses API on your own models."},
        "components": {
            "schemas": {**components, **_untagged(components), "GivenItem": _given_item(components)},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
        "paths": paths,
    }


def _untagged(components: Mapping[str, Schema]) -> dict[str, Schema]:
    """Structs whose `type` a request may omit, because their position allows no other."""
    names = [struct.__name__ for struct in (AutoContainer, ReasoningText, SummaryText)]
    return {name: {**components[name], "required": []} for name in names}


def _given_item(components: Mapping[str, Schema]) -> Schema:
    """An input item: of one of the known types, with its required fields and any others."""
    known = ((kind, components[of.__name__], given_fields(kind).__name__) for kind, of in items.READERS.items())
    return {"anyOf": [_known_item(kind, component, components[given]) for kind, component, given in known]}


def _item_types() -> Iterator[type]:
    """The structs that validate input items."""
    for kind, read in items.READERS.items():
        yield from (read, given_fields(kind))


def _known_item(kind: str, component: Schema, given: Schema) -> Schema:
    required = [*component.get("required", []), *given.get("required", [])]
    ids = {"id": _id_schema(item_id_prefix(kind)), "call_id": {"minLength": 1, "maxLength": MAX_ID_LENGTH}}
    fields = {**given["properties"], **component["properties"]}
    # Without a type, an item with a role is a message, and no reference.
    untyped = {"not": {"required": ["role"], "not": {"required": ["type"]}}} if kind == "item_reference" else {}
    return {
        **component,
        **untyped,
        "properties": {"type": {"const": kind}, **fields, **{name: {**fields[name], **ids[name]} for name in ids}},
        "required": required if kind in items.UNTYPED else ["type", *required],
    }


def _id_schema(prefix: str) -> Schema:
    return {"pattern": f"^{prefix}[A-Za-z0-9_-]{'*' if prefix else '+'}$", "maxLength": MAX_ID_LENGTH}


def _operation_object(route: ApiRoute, routes: Sequence[ApiRoute], schemas: Mapping[str, Schema]) -> Schema:
    operation = route.operation
    content: dict[str, Schema] = {}
    for content_type in operation.content_types:
        event = _event([schemas[repr(event)] for event in operation.events])
        by_type = {JSON: schemas.get(repr(operation.returns), {}), EVENT_STREAM: event}
        content[content_type] = {"schema": by_type.get(content_type, {"type": "string"})}
    described: Schema = {
        "operationId": operation.operation_id,
        "summary": route.summary,
        "parameters": [
            *(_parameter(name, "path", {"type": "string", "minLength": 1}) for name in route.parameters),
            *(_parameter(name, "query", schema) for name, schema in operation.query.items()),
        ],
        "responses": {
            "200": {"description": "Success", "content": content, "links": _links(route, routes)},
            "default": {"description": "Error", "content": {JSON: {"schema": schemas[repr(operation.error)]}}},
        },
    }
    if accepted := _request_content(operation, schemas):
        described["requestBody"] = {"required": True, "content": accepted}
    return described | ({"security": []} if operation.public else {})


def _request_content(operation: Operation, schemas: Mapping[str, Schema]) -> dict[str, Schema]:
    """The schemas of the request body by content type."""
    content: dict[str, Schema] = {}
    if operation.body is not None:
        content[JSON] = {"schema": schemas[repr(operation.body)]}
    if operation.form is not None:
        content["multipart/form-data"] = {"schema": operation.form}
    if operation.raw is not None:
        content[operation.raw] = {"schema": BINARY}
    return content


def _event(kinds: list[Schema]) -> Schema:
    """One server-sent event as a client parses it: its name, and its data, which is JSON."""
    return {
        "type": "object",
        "required": ["event", "data"],
        "properties": {
            "event": {"type": "string"},
            "data": {"type": "string", "contentMediaType": JSON, "contentSchema": {"anyOf": kinds}},
        },
    }


def _links(route: ApiRoute, routes: Sequence[ApiRoute]) -> Schema:
    """OpenAPI links: every operation whose path parameters this operation's request and response provide."""
    provided = route.operation.links
    sources = {name: f"$request.path.{name}" for name in route.parameters}
    sources |= {name: f"$response.body#{pointer}" for name, pointer in provided.items()}
    return {
        other.operation.operation_id: {
            "operationId": other.operation.operation_id,
            "parameters": {name: sources[name] for name in other.parameters},
        }
        for other in routes
        if set(provided) & set(other.parameters) and set(other.parameters) <= set(sources)
    }


def _parameter(name: str, location: str, schema: Schema) -> Schema:
    return {"name": name, "in": location, "required": location == "path", "schema": schema}
