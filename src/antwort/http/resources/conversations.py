"""Handlers of /v1/conversations: create, retrieve, update, delete, and their items."""

from __future__ import annotations

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from antwort.api.errors import ApiError, invalid, not_found
from antwort.api.ids import new_id
from antwort.api.items import Raw, with_status
from antwort.api.objects import ConversationObject, Deleted, ItemPage
from antwort.api.requests import AddItems, CreateConversation, UpdateConversation, item_schemas, read_items
from antwort.api.validation.ids import check_each_once
from antwort.engine.attachments import check_files
from antwort.engine.compaction.opening import TenantSealer, check_items
from antwort.engine.context import check_in_steps, normalize_items
from antwort.engine.stores import ConversationRecord, RecordPage
from antwort.http.bodies import json_answer, read_json
from antwort.http.openapi import ApiRoute, Operation
from antwort.http.paging import INCLUDE_QUERY, item_page, paging_query, parse_include, parse_page_query
from antwort.http.services import owner_of, services_of
from antwort.telemetry import audit


async def create(request: Request) -> HttpResponse:
    """Create a conversation, optionally with items."""
    body = await read_json(request, CreateConversation)
    items = await _parse_items(request, body.items or [])
    _check_ids(items, {})
    record = ConversationRecord(new_id("conv_"), int(time.time()), body.metadata or {})
    await services_of(request).store.create_conversation(owner_of(request), record, items)
    audit("conversation.create", record.id)
    return json_answer(_conversation_object(record))


async def retrieve(request: Request) -> HttpResponse:
    """Retrieve a conversation, without its items."""
    return json_answer(_conversation_object(await _get_record(request)))


async def update(request: Request) -> HttpResponse:
    """Replace the metadata of a conversation."""
    body = await read_json(request, UpdateConversation)
    identifier = _id(request)
    store = services_of(request).store
    record = await store.update_conversation(owner_of(request), identifier, body.metadata or {})
    if record is None:
        raise _conversation_not_found(request)
    audit("conversation.update", identifier)
    return json_answer(_conversation_object(record))


async def delete(request: Request) -> HttpResponse:
    """Delete a conversation and its items."""
    identifier = _id(request)
    if not await services_of(request).store.delete_conversation(owner_of(request), identifier):
        raise _conversation_not_found(request)
    audit("conversation.delete", identifier)
    return json_answer(Deleted(id=identifier, object="conversation.deleted"))


async def add_items(request: Request) -> HttpResponse:
    """Append items to a conversation."""
    view, body = services_of(request).view(parse_include(request)), await read_json(request, AddItems)
    await _get_record(request)
    items = await _parse_items(request, body.items)
    _check_ids(items, await _items_with_same_ids(request, items))
    if not await services_of(request).store.add_items(owner_of(request), _id(request), items):
        raise _conversation_not_found(request)
    audit("conversation.items.create", _id(request), count=len(items))
    return json_answer(item_page(RecordPage(items, has_more=False), view))


async def list_items(request: Request) -> HttpResponse:
    """List the items of a conversation."""
    view, query = services_of(request).view(parse_include(request)), parse_page_query(request)
    page = await services_of(request).store.list_items(owner_of(request), _id(request), query)
    if page is None:
        raise _conversation_not_found(request)
    return json_answer(item_page(page, view))


async def retrieve_item(request: Request) -> HttpResponse:
    """Retrieve an item of a conversation."""
    view, item_id = services_of(request).view(parse_include(request)), request.path_params["item_id"]
    item = await services_of(request).store.get_item(owner_of(request), _id(request), item_id)
    if item is None:
        raise not_found("Item", item_id)
    return json_answer(view.listed_item(item))


async def delete_item(request: Request) -> HttpResponse:
    """Delete an item; returns the conversation."""
    record, item_id = await _get_record(request), request.path_params["item_id"]
    if not await services_of(request).store.delete_item(owner_of(request), record.id, item_id):
        raise not_found("Item", item_id)
    audit("conversation.items.delete", record.id, item_id=item_id)
    return json_answer(_conversation_object(record))


async def _parse_items(request: Request, raw: list[Raw]) -> list[Raw]:
    owner, services = owner_of(request), services_of(request)
    store, models = services.store, services.models
    reads_foreign = any(models.find(name).compaction is not None for name in models.names())
    read = read_items(raw, "items", services.engine.tool_types)
    await check_in_steps(item_schemas(read, "items"))
    check_each_once(read, "items")
    check_items(read, TenantSealer(services.engine.sealer, owner.tenant), "items", reads_foreign=reads_foreign)
    parsed = await normalize_items(read, owner, store, "items")
    await check_files(parsed, owner, store, "items")
    return [item.raw for item in parsed]


async def _items_with_same_ids(request: Request, items: list[Raw]) -> dict[str, Raw]:
    """The items of the conversation that have the ids of these items."""
    owner, store = owner_of(request), services_of(request).store
    found = [await store.get_item(owner, _id(request), item["id"]) for item in items]
    return {item["id"]: item for item in found if item is not None}


def _check_ids(items: list[Raw], existing: dict[str, Raw]) -> None:
    """Reject a different item under an existing id: the store skips existing ids, so it would be lost."""
    known = dict(existing)
    for at, item in enumerate(items):
        if with_status(known.setdefault(item["id"], item)) != with_status(item):
            message = f"This conversation has another item with id '{item['id']}'. Give the new item a different id."
            raise invalid(message, param=f"items[{at}].id")


async def _get_record(request: Request) -> ConversationRecord:
    record = await services_of(request).store.get_conversation(owner_of(request), _id(request))
    if record is None:
        raise _conversation_not_found(request)
    return record


def _id(request: Request) -> str:
    return request.path_params["conversation_id"]


def _conversation_not_found(request: Request) -> ApiError:
    return not_found("Conversation", _id(request))


def _conversation_object(record: ConversationRecord) -> ConversationObject:
    return ConversationObject(**msgspec.structs.asdict(record))


_CONVERSATION = "/v1/conversations/{conversation_id}"
_ITEM = _CONVERSATION + "/items/{item_id}"

routes = [
    ApiRoute(
        "POST",
        "/v1/conversations",
        create,
        Operation("createConversation", CreateConversation, ConversationObject, links={"conversation_id": "/id"}),
    ),
    ApiRoute("GET", _CONVERSATION, retrieve, Operation("getConversation", returns=ConversationObject)),
    ApiRoute("POST", _CONVERSATION, update, Operation("updateConversation", UpdateConversation, ConversationObject)),
    ApiRoute("DELETE", _CONVERSATION, delete, Operation("deleteConversation", returns=Deleted)),
    ApiRoute(
        "POST",
        _CONVERSATION + "/items",
        add_items,
        Operation("createConversationItems", AddItems, ItemPage, query=INCLUDE_QUERY, links={"item_id": "/last_id"}),
    ),
    ApiRoute(
        "GET",
        _CONVERSATION + "/items",
        list_items,
        Operation("listConversationItems", returns=ItemPage, query={**paging_query(), **INCLUDE_QUERY}),
    ),
    ApiRoute("GET", _ITEM, retrieve_item, Operation("getConversationItem", returns=Raw, query=INCLUDE_QUERY)),
    ApiRoute("DELETE", _ITEM, delete_item, Operation("deleteConversationItem", returns=ConversationObject)),
]
