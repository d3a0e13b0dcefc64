"""`/openapi.json`: what this server takes and gives, made from the structs that it takes and gives it with."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response as Answer
from starlette.routing import Route

from antwort.api.containers import AddContainerFile, CreateContainer, ExecuteCode
from antwort.api.requests import AddItems, CountTokens, CreateConversation, CreateResponse, UpdateConversation
from antwort.api.responses import Response
from antwort.http.bodies import json_answer

_REF = "#/components/schemas/{name}"
_PAGING = ("after", "limit", "order")
_INCLUDE = ("include[]",)
_ITEMS = (*_PAGING, *_INCLUDE)
_FORM = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {"file": {"type": "string", "format": "binary"}, "purpose": {"type": "string"}},
}


_FILE = {"type": "object", "required": ["file"], "properties": {"file": {"type": "string", "format": "binary"}}}
_TAR = "application/x-tar"


class Operation(NamedTuple):
    """One thing that can be asked for."""

    method: str
    path: str
    name: str
    summary: str
    takes: type[Any] | None = None
    gives: type[Any] | None = None
    query: tuple[str, ...] = ()
    form: dict[str, Any] | None = None
    """What it takes as a form."""
    raw: str | None = None
    """The kind of bytes that it takes."""


_CONVERSATION = "/v1/conversations/{conversation_id}"
_CONTAINER = "/v1/containers/{container_id}"
_CONTAINER_FILE = _CONTAINER + "/files/{file_id}"

OPERATIONS = (
    Operation("post", "/v1/responses", "createResponse", "Ask for a response", CreateResponse, Response),
    Operation("post", "/v1/responses/input_tokens", "countInputTokens", "Count the input's tokens", CountTokens),
    Operation(
        "get",
        "/v1/responses/{response_id}",
        "getResponse",
        "A response, or its events",
        gives=Response,
        query=("include[]", "stream", "starting_after", "include_obfuscation"),
    ),
    Operation("delete", "/v1/responses/{response_id}", "deleteResponse", "Forget a response"),
    Operation(
        "post", "/v1/responses/{response_id}/cancel", "cancelResponse", "Stop a background response", gives=Response
    ),
    Operation("get", "/v1/responses/{response_id}/input_items", "listInputItems", "What it was asked", query=_ITEMS),
    Operation("post", "/v1/conversations", "createConversation", "Begin a conversation", CreateConversation),
    Operation("get", _CONVERSATION, "getConversation", "A conversation"),
    Operation("post", _CONVERSATION, "updateConversation", "Other metadata", UpdateConversation),
    Operation("delete", _CONVERSATION, "deleteConversation", "Forget a conversation"),
    Operation("post", _CONVERSATION + "/items", "createConversationItems", "Append items", AddItems, query=_INCLUDE),
    Operation("get", _CONVERSATION + "/items", "listConversationItems", "Its items", query=_ITEMS),
    Operation("get", _CONVERSATION + "/items/{item_id}", "getConversationItem", "One of its items", query=_INCLUDE),
    Operation("delete", _CONVERSATION + "/items/{item_id}", "deleteConversationItem", "Take an item out"),
    Operation("post", "/v1/containers", "createContainer", "Make a container", CreateContainer),
    Operation("get", "/v1/containers", "listContainers", "The containers", query=(*_PAGING, "name")),
    Operation("get", _CONTAINER, "getContainer", "A container"),
    Operation("delete", _CONTAINER, "deleteContainer", "Forget a container, with all that is in it"),
    Operation(
        "post",
        _CONTAINER + "/files",
        "createContainerFile",
        "Put a file into a container",
        AddContainerFile,
        form=_FILE,
    ),
    Operation("get", _CONTAINER + "/files", "listContainerFiles", "The files in a container", query=_PAGING),
    Operation("get", _CONTAINER_FILE, "getContainerFile", "What is known of a file in a container"),
    Operation("delete", _CONTAINER_FILE, "deleteContainerFile", "Remove a file from a container"),
    Operation("get", _CONTAINER_FILE + "/content", "getContainerFileContent", "The file itself"),
    Operation("put", _CONTAINER + "/archive", "writeContainerArchive", "Unpack a tar into a container", raw=_TAR),
    Operation("get", _CONTAINER + "/archive", "readContainerArchive", "All files of a container as one tar"),
    Operation("post", _CONTAINER + "/exec", "executeInContainer", "Run code without a model", ExecuteCode),
    Operation("post", "/v1/files", "createFile", "Upload a file", form=_FORM),
    Operation("get", "/v1/files", "listFiles", "The files", query=(*_PAGING, "purpose")),
    Operation("get", "/v1/files/{file_id}", "getFile", "What is known of a file"),
    Operation("delete", "/v1/files/{file_id}", "deleteFile", "Forget a file"),
    Operation("get", "/v1/files/{file_id}/content", "getFileContent", "The file itself"),
    Operation("get", "/v1/models", "listModels", "The models"),
    Operation("get", "/v1/models/{model}", "getModel", "A model"),
    Operation("get", "/healthz", "healthz", "Whether the process answers"),
    Operation("get", "/readyz", "readyz", "Whether it can take requests"),
    Operation("get", "/metrics", "metrics", "Numbers for Prometheus"),
)


async def openapi(request: Request) -> Answer:
    """The document."""
    del request
    return json_answer(document())


@cache
def document() -> dict[str, Any]:
    """All operations, and the schemas of what they take and give."""
    types = [one for operation in OPERATIONS for one in (operation.takes, operation.gives) if one is not None]
    _, components = msgspec.json.schema_components(dict.fromkeys(types), ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "antwort", "version": "1", "description": "OpenAI's Responses API on your own models."},
        "components": {
            "schemas": {**components, "Error": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
        "paths": paths,
    }


_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def _described(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [*_in_path(operation.path), *(_parameter(name, "query") for name in operation.query)],
        "responses": {
            "200": {"description": "What was asked for", **_content(operation.gives)},
            "default": {"description": "An error", "content": {"application/json": {"schema": _ref("Error")}}},
        },
    }
    if taken := _taken(operation):
        described["requestBody"] = {"required": True, "content": taken}
    return described


def _taken(operation: Operation) -> dict[str, Any]:
    """What a body may be, by its type."""
    taken: dict[str, Any] = _content(operation.takes).get("content", {})
    if operation.form is not None:
        taken["multipart/form-data"] = {"schema": operation.form}
    if operation.raw is not None:
        taken[operation.raw] = {"schema": {"type": "string", "format": "binary"}}
    return taken


def _content(of: type[Any] | None) -> dict[str, Any]:
    return {} if of is None else {"content": {"application/json": {"schema": _ref(of.__name__)}}}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": _REF.format(name=name)}


def _in_path(path: str) -> list[dict[str, Any]]:
    names = [part.removeprefix("{").removesuffix("}") for part in path.split("/") if part.startswith("{")]
    return [_parameter(name, "path") for name in names]


def _parameter(name: str, place: str) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": {"type": "string"}}


routes = [Route("/openapi.json", openapi, methods=["GET"])]
