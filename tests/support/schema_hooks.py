"""What schemathesis cannot know from a schema: which requests mean something. Loaded by schemathesis itself.

Only values that a schema allows are replaced, so what is wrong on purpose stays wrong.
"""

from __future__ import annotations

import os
from functools import cache
from http import HTTPStatus
from itertools import count
from typing import Any

import httpx2
import schemathesis
from schemathesis import Case, GenerationMode, HookContext
from schemathesis.core.parameters import ParameterLocation

_calls = count()
_shared: list[str] = []

schemathesis.serializer.alias("application/x-tar", "application/octet-stream")


@schemathesis.hook
def before_call(context: HookContext, case: Case, kwargs: dict[str, Any]) -> None:
    if case.operation.path in ("/v1/responses", "/v1/responses/input_tokens") and isinstance(case.body, dict):
        case.body = with_valid_semantics(case.body)
    if case.path_parameters and is_positive(case, ParameterLocation.PATH) and next(_calls) % 2:
        case.path_parameters = {**case.path_parameters, **existing_ids(case)}


def is_positive(case: Case, part: ParameterLocation) -> bool:
    """Whether a part of a request is there, and as the schema has it."""
    found = case.meta.components.get(part) if case.meta else None
    return found is not None and found.mode == GenerationMode.POSITIVE


def with_valid_semantics(body: dict[str, Any]) -> dict[str, Any]:
    """Something to answer, no history that nobody has, and a place to keep what goes on in the background."""
    body = dict(body)
    if body.get("input") is None:
        body["input"] = "hello"
    for earlier in ("previous_response_id", "conversation"):
        if isinstance(body.get(earlier), str):
            del body[earlier]
    if body.get("background") is True and body.get("store") is False:
        del body["store"]
    return body


def existing_ids(case: Case) -> dict[str, str]:
    """Ids of something that there is, for a path that would else hardly ever lead to anything."""
    path = case.operation.path
    if "{container_id}" in path:
        return container_ids(path, deleted=case.method.upper() == "DELETE")
    if "{response_id}" in path:
        made = _http().post("/v1/responses", json={"input": "hello", "background": path.endswith("/cancel")})
        return {"response_id": made.json()["id"]}
    if "{file_id}" in path:
        made = _http().post("/v1/files", files={"file": ("a.txt", b"a")}, data={"purpose": "user_data"})
        return {"file_id": made.json()["id"]}
    if "{conversation_id}" in path:
        item = {"id": "msg_1", "role": "user", "content": "hello"}
        made = _http().post("/v1/conversations", json={"items": [item]})
        return {"conversation_id": made.json()["id"]} | ({"item_id": "msg_1"} if "{item_id}" in path else {})
    return {}


def container_ids(path: str, *, deleted: bool) -> dict[str, str]:
    """One container for all, as sandboxes are few; but what is to be forgotten is made for it."""
    if not path.endswith("{container_file_id}") and deleted:
        return {"container_id": create_container()}
    made = {"container_id": shared_container()}
    if "{container_file_id}" in path:
        file = _http().post(f"/v1/containers/{made['container_id']}/files", files={"file": ("a.txt", b"a")})
        made["container_file_id"] = file.json()["id"]
    if path.endswith("/archive"):  # a tar without members, which nobody finds by chance
        _http().put(f"/v1/containers/{made['container_id']}/archive", content=bytes(10240)).raise_for_status()
    return made


def create_container() -> str:
    return _http().post("/v1/containers", json={"name": "x"}).json()["id"]


def shared_container() -> str:
    """The same as long as nobody has deleted it."""
    if not _shared or _http().get(f"/v1/containers/{_shared[0]}").status_code != HTTPStatus.OK:
        _shared[:] = [create_container()]
    return _shared[0]


@cache
def _http() -> httpx2.Client:
    headers = {"authorization": f"Bearer {os.environ['SCHEMA_KEY']}"}
    return httpx2.Client(base_url=os.environ["SCHEMA_URL"], headers=headers, trust_env=False)
