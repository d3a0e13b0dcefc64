"""What schemathesis cannot know from a schema: which requests mean something. Loaded by schemathesis itself.

Only values that a schema allows are replaced, so what is wrong on purpose stays wrong.
"""

from __future__ import annotations

import os
from functools import cache
from itertools import count
from typing import Any

import httpx2
import schemathesis
from schemathesis import Case, GenerationMode, HookContext
from schemathesis.core.parameters import ParameterLocation

_turn = count()


@schemathesis.hook
def before_call(context: HookContext, case: Case, kwargs: dict[str, Any]) -> None:
    if case.operation.path in ("/v1/responses", "/v1/responses/input_tokens") and isinstance(case.body, dict):
        case.body = meaningful(case.body)
    path = case.meta.components.get(ParameterLocation.PATH) if case.meta else None
    if case.path_parameters and path and path.mode == GenerationMode.POSITIVE and next(_turn) % 2:
        case.path_parameters = {**case.path_parameters, **something_for(case.operation.path)}


def meaningful(body: dict[str, Any]) -> dict[str, Any]:
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


def something_for(path: str) -> dict[str, str]:
    """Ids of something that has just been made, for a path that would else hardly ever lead to anything."""
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


@cache
def _http() -> httpx2.Client:
    headers = {"authorization": f"Bearer {os.environ['SCHEMA_KEY']}"}
    return httpx2.Client(base_url=os.environ["SCHEMA_URL"], headers=headers, trust_env=False)
