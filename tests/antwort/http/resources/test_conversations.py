from __future__ import annotations

import pytest

pytestmark = pytest.mark.anyio


def message(text: str, identifier: str = "msg_1") -> dict:
    return {"type": "message", "id": identifier, "role": "user", "content": [{"type": "input_text", "text": text}]}


async def test_a_different_item_under_an_existing_id_is_rejected(server):
    http = server.http
    conversation = (await http.post("/v1/conversations", json={"items": [message("one")]})).json()
    items = f"/v1/conversations/{conversation['id']}/items"
    conflicting = await http.post(items, json={"items": [message("new", "msg_2"), message("two")]})
    duplicate = await http.post("/v1/conversations", json={"items": [message("one"), message("two")]})

    assert (conflicting.status_code, conflicting.json()["error"]["param"]) == (400, "items[1].id")
    assert (duplicate.status_code, duplicate.json()["error"]["param"]) == (400, "items")
    assert [item["id"] for item in (await http.get(items)).json()["data"]] == ["msg_1"]


async def test_adding_an_existing_item_again_changes_nothing(server):
    http = server.http
    conversation = (await http.post("/v1/conversations", json={"items": [message("one")]})).json()
    items = f"/v1/conversations/{conversation['id']}/items"
    for given in (message("one"), {"type": "item_reference", "id": "msg_1"}):
        assert (await http.post(items, json={"items": [given]})).status_code == 200
    assert [item["id"] for item in (await http.get(items)).json()["data"]] == ["msg_1"]
