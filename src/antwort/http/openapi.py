"""`/openapi.json`: what this server takes and gives, made from the structs that it takes and gives it with."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response as Answer
from starlette.routing import Route

from antwort.api import items
from antwort.api.containers import (
    AddContainerFile,
    Archived,
    ContainerFileObject,
    ContainerFilePage,
    ContainerObject,
    ContainerPage,
    CreateContainer,
    ExecCompleted,
    ExecOutput,
    ExecuteCode,
    Execution,
)
from antwort.api.errors import ErrorEnvelope
from antwort.api.events import EVENTS, ErrorEvent
from antwort.api.items import ReasoningText, SummaryText
from antwort.api.objects import (
    ConversationObject,
    Deleted,
    FileObject,
    FilePage,
    Health,
    InputTokens,
    ItemPage,
    ModelList,
    ModelObject,
)
from antwort.api.requests import AddItems, CountTokens, CreateConversation, CreateResponse, Include, UpdateConversation
from antwort.api.responses import Response
from antwort.api.tools import AutoContainer
from antwort.http import paging
from antwort.http.bodies import json_answer
from antwort.http.resources import files

Schema: TypeAlias = dict[str, Any]

_REF = "#/components/schemas/{name}"
_JSON, _EVENTS = "application/json", "text/event-stream"
_BINARY: Schema = {"type": "string", "format": "binary"}

_FORM: Schema = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": _BINARY,
        "purpose": {"enum": list(files.PURPOSES)},
        "expires_after[anchor]": {"enum": ["created_at"]},
        "expires_after[seconds]": {"type": "integer", "minimum": files.SOONEST, "maximum": files.LATEST},
    },
    "dependentRequired": {
        "expires_after[anchor]": ["expires_after[seconds]"],
        "expires_after[seconds]": ["expires_after[anchor]"],
    },
}


_UPLOAD: Schema = {"type": "object", "required": ["file"], "properties": {"file": _BINARY}}
_TAR = "application/x-tar"
_EXEC_EVENTS = (ExecOutput, ExecCompleted, ErrorEvent)


def _paging(most: int, usual: int) -> dict[str, Schema]:
    return {
        "after": {"type": "string"},
        "before": {"type": "string"},
        "limit": {"type": "integer", "minimum": 1, "maximum": most, "default": usual},
        "order": {"enum": ["asc", "desc"], "default": "desc"},
    }


_INCLUDE: dict[str, Schema] = {"include[]": {"type": "array", "items": {"enum": list(get_args(Include))}}}
_ITEMS = {**_paging(paging.MOST, paging.USUAL), **_INCLUDE}
_YES, _NO = ({"type": "boolean", "default": value} for value in (True, False))
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Operation(NamedTuple):
    """One thing that can be asked for."""

    method: str
    path: str
    name: str
    summary: str
    takes: Any = None
    gives: Any = None
    query: Mapping[str, Schema] = _NOTHING
    kinds: tuple[str, ...] = (_JSON,)
    """The content types of what it gives."""
    makes: Mapping[str, str] = _NOTHING
    """Where its answer has what other paths want: the name of their parameter, and a place in the answer."""
    form: Schema | None = None
    """What it takes as a form."""
    raw: str | None = None
    """The kind of bytes that it takes."""
    open: bool = False
    """Whether it needs no key."""
    events: tuple[type[Any], ...] = EVENTS
    """What its stream consists of, where it gives one."""


_RESPONSE, _CONVERSATION, _FILE, _CONTAINER = (
    "/v1/responses/{response_id}",
    "/v1/conversations/{conversation_id}",
    "/v1/files/{file_id}",
    "/v1/containers/{container_id}",
)
_ITEM = _CONVERSATION + "/items/{item_id}"
_CONTAINER_FILE = _CONTAINER + "/files/{container_file_id}"

OPERATIONS = (
    Operation(
        "post",
        "/v1/responses",
        "createResponse",
        "Ask for a response",
        CreateResponse,
        Response,
        kinds=(_JSON, _EVENTS),
        makes={"response_id": "/id"},
    ),
    Operation(
        "post", "/v1/responses/input_tokens", "countInputTokens", "Count the input's tokens", CountTokens, InputTokens
    ),
    Operation(
        "get",
        _RESPONSE,
        "getResponse",
        "A response, or its events",
        gives=Response,
        query={**_INCLUDE, "stream": _NO, "starting_after": {"type": "integer"}, "include_obfuscation": _YES},
        kinds=(_JSON, _EVENTS),
    ),
    Operation("delete", _RESPONSE, "deleteResponse", "Forget a response", gives=Deleted),
    Operation("post", _RESPONSE + "/cancel", "cancelResponse", "Stop a background response", gives=Response),
    Operation("get", _RESPONSE + "/input_items", "listInputItems", "What it was asked", gives=ItemPage, query=_ITEMS),
    Operation(
        "post",
        "/v1/conversations",
        "createConversation",
        "Begin a conversation",
        CreateConversation,
        ConversationObject,
        makes={"conversation_id": "/id"},
    ),
    Operation("get", _CONVERSATION, "getConversation", "A conversation", gives=ConversationObject),
    Operation("post", _CONVERSATION, "updateConversation", "Other metadata", UpdateConversation, ConversationObject),
    Operation("delete", _CONVERSATION, "deleteConversation", "Forget a conversation", gives=Deleted),
    Operation(
        "post",
        _CONVERSATION + "/items",
        "createConversationItems",
        "Append items",
        AddItems,
        ItemPage,
        query=_INCLUDE,
        makes={"item_id": "/last_id"},
    ),
    Operation("get", _CONVERSATION + "/items", "listConversationItems", "Its items", gives=ItemPage, query=_ITEMS),
    Operation("get", _ITEM, "getConversationItem", "One of its items", gives=items.Raw, query=_INCLUDE),
    Operation("delete", _ITEM, "deleteConversationItem", "Take an item out", gives=ConversationObject),
    Operation(
        "post",
        "/v1/containers",
        "createContainer",
        "Make a container",
        CreateContainer,
        ContainerObject,
        makes={"container_id": "/id"},
    ),
    Operation(
        "get",
        "/v1/containers",
        "listContainers",
        "The containers",
        gives=ContainerPage,
        query={**_paging(paging.MOST, paging.USUAL), "name": {"type": "string"}},
    ),
    Operation("get", _CONTAINER, "getContainer", "A container", gives=ContainerObject),
    Operation("delete", _CONTAINER, "deleteContainer", "Forget a container, with all that is in it", gives=Deleted),
    Operation(
        "post",
        _CONTAINER + "/files",
        "createContainerFile",
        "Put a file into a container",
        AddContainerFile,
        ContainerFileObject,
        form=_UPLOAD,
        makes={"container_file_id": "/id"},
    ),
    Operation(
        "get",
        _CONTAINER + "/files",
        "listContainerFiles",
        "The files in a container",
        gives=ContainerFilePage,
        query=_paging(paging.MOST, paging.USUAL),
    ),
    Operation("get", _CONTAINER_FILE, "getContainerFile", "What is known of one of them", gives=ContainerFileObject),
    Operation("delete", _CONTAINER_FILE, "deleteContainerFile", "Remove a file from a container", gives=Deleted),
    Operation(
        "get",
        _CONTAINER_FILE + "/content",
        "getContainerFileContent",
        "The file itself",
        kinds=("application/octet-stream",),
    ),
    Operation(
        "put",
        _CONTAINER + "/archive",
        "writeContainerArchive",
        "Unpack a tar into a container",
        gives=Archived,
        raw=_TAR,
    ),
    Operation(
        "get", _CONTAINER + "/archive", "readContainerArchive", "All files of a container as one tar", kinds=(_TAR,)
    ),
    Operation(
        "post",
        _CONTAINER + "/exec",
        "executeInContainer",
        "Run code without a model",
        ExecuteCode,
        Execution,
        kinds=(_JSON, _EVENTS),
        events=_EXEC_EVENTS,
    ),
    Operation(
        "post", "/v1/files", "createFile", "Upload a file", gives=FileObject, makes={"file_id": "/id"}, form=_FORM
    ),
    Operation(
        "get",
        "/v1/files",
        "listFiles",
        "The files",
        gives=FilePage,
        query={**_paging(files.MOST, files.MOST), "purpose": {"type": "string"}},
    ),
    Operation("get", _FILE, "getFile", "What is known of a file", gives=FileObject),
    Operation("delete", _FILE, "deleteFile", "Forget a file", gives=Deleted),
    Operation("get", _FILE + "/content", "getFileContent", "The file itself", kinds=("application/octet-stream",)),
    Operation("get", "/v1/models", "listModels", "The models", gives=ModelList, makes={"model": "/data/0/id"}),
    Operation("get", "/v1/models/{model}", "getModel", "A model", gives=ModelObject),
    Operation("get", "/healthz", "healthz", "Whether the process answers", gives=Health, open=True),
    Operation("get", "/readyz", "readyz", "Whether it can take requests", gives=Health, open=True),
    Operation("get", "/metrics", "metrics", "Numbers for Prometheus", kinds=("text/plain",)),
)


async def openapi(request: Request) -> Answer:
    """The document."""
    del request
    return json_answer(document())


@cache
def document() -> Schema:
    """All operations, and the schemas of what they take and give."""
    bodies = [one for operation in OPERATIONS for one in (operation.takes, operation.gives) if one is not None]
    types = list(
        {
            repr(one): one
            for one in (*bodies, ErrorEnvelope, *EVENTS, *_EXEC_EVENTS, items.Paired, *items.READERS.values())
        }.values()
    )
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    described = {repr(of): schema for of, schema in zip(types, schemas, strict=True)}
    paths: dict[str, Schema] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation, described)
    return {
        "openapi": "3.1.0",
        "info": {"title": "antwort", "version": "1", "description": "OpenAI's Responses API on your own models."},
        "components": {
            "schemas": {**components, **_alone(components), "GivenItem": _given_item(components)},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
        "paths": paths,
    }


def _alone(components: Mapping[str, Schema]) -> dict[str, Schema]:
    """Structs that a request has where nothing else could be: nobody asks for their `type` there."""
    names = [struct.__name__ for struct in (AutoContainer, ReasoningText, SummaryText)]
    return {name: {**components[name], "required": []} for name in names}


def _given_item(components: Mapping[str, Schema]) -> Schema:
    """An item of a type that we know, with what we need of it; or of any other, with whatever it has."""
    other: Schema = {"type": "string", "not": {"enum": list(items.READERS)}}
    any_has = components[items.Paired.__name__]["properties"]
    known = [_known(kind, components[reader.__name__], any_has) for kind, reader in items.READERS.items()]
    return {"anyOf": [*known, {"type": "object", "required": ["type"], "properties": {"type": other, **any_has}}]}


def _known(kind: str, component: Schema, any_has: Schema) -> Schema:
    required = component.get("required", [])
    return {
        **component,
        "properties": {"type": {"const": kind}, **any_has, **component["properties"]},
        "required": required if kind in items.UNTYPED else ["type", *required],
    }


def _described(operation: Operation, schemas: Mapping[str, Schema]) -> Schema:
    given: dict[str, Schema] = {}
    for kind in operation.kinds:
        streamed = _event([schemas[repr(event)] for event in operation.events])
        schema = {_JSON: schemas.get(repr(operation.gives), {}), _EVENTS: streamed}.get(kind, {"type": "string"})
        given[kind] = {"schema": schema}
    described: Schema = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [
            *(_parameter(name, "path", {"type": "string", "minLength": 1}) for name in path_names(operation.path)),
            *(_parameter(name, "query", schema) for name, schema in operation.query.items()),
        ],
        "responses": {
            "200": {"description": "What was asked for", "content": given, "links": _links(operation)},
            "default": {"description": "An error", "content": {_JSON: {"schema": schemas[repr(ErrorEnvelope)]}}},
        },
    }
    if taken := _taken(operation, schemas):
        described["requestBody"] = {"required": True, "content": taken}
    return described | ({"security": []} if operation.open else {})


def _taken(operation: Operation, schemas: Mapping[str, Schema]) -> dict[str, Schema]:
    """What a body may be, by its type."""
    taken: dict[str, Schema] = {}
    if operation.takes is not None:
        taken[_JSON] = {"schema": schemas[repr(operation.takes)]}
    if operation.form is not None:
        taken["multipart/form-data"] = {"schema": operation.form}
    if operation.raw is not None:
        taken[operation.raw] = {"schema": _BINARY}
    return taken


def _event(kinds: list[Schema]) -> Schema:
    """One event of a stream, as it is read: its name, and its data, which is JSON."""
    data = {"anyOf": kinds}
    return {
        "type": "object",
        "required": ["event", "data"],
        "properties": {
            "event": {"type": "string"},
            "data": {"type": "string", "contentMediaType": _JSON, "contentSchema": data},
        },
    }


def _links(operation: Operation) -> Schema:
    """Where to go from here: every operation whose path can be filled from this one's request and answer."""
    sources = {name: f"$request.path.{name}" for name in path_names(operation.path)}
    sources |= {name: f"$response.body#{place}" for name, place in operation.makes.items()}
    return {
        other.name: {"operationId": other.name, "parameters": {name: sources[name] for name in path_names(other.path)}}
        for other in OPERATIONS
        if set(operation.makes) & set(path_names(other.path)) and set(path_names(other.path)) <= set(sources)
    }


def path_names(path: str) -> list[str]:
    """The parameters in a path."""
    return [part.strip("{}") for part in path.split("/") if part.startswith("{")]


def _parameter(name: str, place: str, schema: Schema) -> Schema:
    return {"name": name, "in": place, "required": place == "path", "schema": schema}


routes = [Route("/openapi.json", openapi, methods=["GET"])]
