from __future__ import annotations

import pytest

pytestmark = pytest.mark.anyio


def said(text: str, identifier: str = "msg_1") -> dict:
    return {"type": "message", "id": identifier, "role": "user", "content": [{"type": "input_text", "text": text}]}


async def test_an_item_under_the_id_of_another_is_refused_and_not_dropped(stage):
    http = stage.http
    begun = (await http.post("/v1/conversations", json={"items": [said("one")]})).json()
    items = f"/v1/conversations/{begun['id']}/items"
    another = await http.post(items, json={"items": [said("new", "msg_2"), said("two")]})
    twice = await http.post("/v1/conversations", json={"items": [said("one"), said("two")]})

    for refused in (another, twice):
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "items[1].id")
    assert [item["id"] for item in (await http.get(items)).json()["data"]] == ["msg_1"]


async def test_the_same_item_again_changes_nothing(stage):
    http = stage.http
    begun = (await http.post("/v1/conversations", json={"items": [said("one")]})).json()
    items = f"/v1/conversations/{begun['id']}/items"
    again = await http.post(items, json={"items": [said("one"), {"type": "item_reference", "id": "msg_1"}]})

    assert again.status_code == 200
    assert [item["id"] for item in (await http.get(items)).json()["data"]] == ["msg_1"]
