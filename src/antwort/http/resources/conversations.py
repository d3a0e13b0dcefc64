"""`/v1/conversations`: histories that live longer than a response, and their items."""

from __future__ import annotations

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response as Answer
from starlette.routing import Route

from antwort.api.errors import ApiError, invalid, not_found
from antwort.api.ids import new_id
from antwort.api.items import Raw
from antwort.api.objects import ConversationObject, Deleted
from antwort.api.requests import AddItems, CreateConversation, UpdateConversation, read_items
from antwort.engine.attachments import check_files
from antwort.engine.context import normalize_items
from antwort.engine.stores import ConversationRecord, Page
from antwort.http.bodies import json_answer, read_json
from antwort.http.paging import included, listed, page_query
from antwort.http.services import owner_of, services_of
from antwort.telemetry import audit


async def create(request: Request) -> Answer:
    """Begin a conversation, perhaps with items."""
    asked = await read_json(request, CreateConversation)
    items = await _taken_in(request, asked.items or [])
    _check_ids(items, {})
    record = ConversationRecord(new_id("conv_"), int(time.time()), asked.metadata or {})
    await services_of(request).store.create_conversation(owner_of(request), record, items)
    audit("conversation.create", record.id)
    return json_answer(_shown(record))


async def retrieve(request: Request) -> Answer:
    """A conversation, without its items."""
    return json_answer(_shown(await _found(request)))


async def update(request: Request) -> Answer:
    """Give it other metadata."""
    asked = await read_json(request, UpdateConversation)
    identifier = _id(request)
    store = services_of(request).store
    record = await store.update_conversation(owner_of(request), identifier, asked.metadata or {})
    if record is None:
        raise _absent(request)
    audit("conversation.update", identifier)
    return json_answer(_shown(record))


async def delete(request: Request) -> Answer:
    """Forget it, with its items."""
    identifier = _id(request)
    if not await services_of(request).store.delete_conversation(owner_of(request), identifier):
        raise _absent(request)
    audit("conversation.delete", identifier)
    return json_answer(Deleted(id=identifier, object="conversation.deleted"))


async def add_items(request: Request) -> Answer:
    """Append to it."""
    view, asked = services_of(request).view(included(request)), await read_json(request, AddItems)
    await _found(request)
    items = await _taken_in(request, asked.items)
    _check_ids(items, await _already_there(request, items))
    if not await services_of(request).store.add_items(owner_of(request), _id(request), items):
        raise _absent(request)
    audit("conversation.items.create", _id(request), count=len(items))
    return json_answer(listed(Page(items, has_more=False), view))


async def list_items(request: Request) -> Answer:
    """A page of its items."""
    view, query = services_of(request).view(included(request)), page_query(request)
    page = await services_of(request).store.list_items(owner_of(request), _id(request), query)
    if page is None:
        raise _absent(request)
    return json_answer(listed(page, view))


async def retrieve_item(request: Request) -> Answer:
    """One of its items."""
    view, item_id = services_of(request).view(included(request)), request.path_params["item_id"]
    item = await services_of(request).store.get_item(owner_of(request), _id(request), item_id)
    if item is None:
        raise not_found("Item", item_id)
    return json_answer(view.item(item))


async def delete_item(request: Request) -> Answer:
    """Take one out; the conversation comes back."""
    record, item_id = await _found(request), request.path_params["item_id"]
    if not await services_of(request).store.delete_item(owner_of(request), record.id, item_id):
        raise not_found("Item", item_id)
    audit("conversation.items.delete", record.id, item_id=item_id)
    return json_answer(_shown(record))


async def _taken_in(request: Request, given: list[Raw]) -> list[Raw]:
    owner, store = owner_of(request), services_of(request).store
    taken = await normalize_items(read_items(given, "items"), owner, store, "items")
    await check_files(taken, owner, store, "items")
    return [item.raw for item in taken]


async def _already_there(request: Request, items: list[Raw]) -> dict[str, Raw]:
    """Those that the conversation has under the ids of these."""
    owner, store = owner_of(request), services_of(request).store
    found = [await store.get_item(owner, _id(request), item["id"]) for item in items]
    return {item["id"]: item for item in found if item is not None}


def _check_ids(items: list[Raw], there: dict[str, Raw]) -> None:
    """An item that is there already is not added again, so another must not come under its id: it would be lost."""
    known = dict(there)
    for at, item in enumerate(items):
        if known.setdefault(item["id"], item) != item:
            message = f"There is another item with id '{item['id']}' in this conversation. Give it an id of its own."
            raise invalid(message, param=f"items[{at}].id")


async def _found(request: Request) -> ConversationRecord:
    record = await services_of(request).store.get_conversation(owner_of(request), _id(request))
    if record is None:
        raise _absent(request)
    return record


def _id(request: Request) -> str:
    return request.path_params["conversation_id"]


def _absent(request: Request) -> ApiError:
    return not_found("Conversation", _id(request))


def _shown(record: ConversationRecord) -> ConversationObject:
    return ConversationObject(**msgspec.structs.asdict(record))


_ONE = "/v1/conversations/{conversation_id}"

routes = [
    Route("/v1/conversations", create, methods=["POST"]),
    Route(_ONE, retrieve, methods=["GET"]),
    Route(_ONE, update, methods=["POST"]),
    Route(_ONE, delete, methods=["DELETE"]),
    Route(_ONE + "/items", add_items, methods=["POST"]),
    Route(_ONE + "/items", list_items, methods=["GET"]),
    Route(_ONE + "/items/{item_id}", retrieve_item, methods=["GET"]),
    Route(_ONE + "/items/{item_id}", delete_item, methods=["DELETE"]),
]
