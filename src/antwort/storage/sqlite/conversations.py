"""Conversations and their items, as statements about one tenant's rows. No threads, no asyncio."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from antwort.api.items import Raw
from antwort.engine.stores import ConversationRecord, Page, PageQuery
from antwort.storage.sqlite.columns import Column, item_columns, read_items
from antwort.storage.sqlite.database import Rows
from antwort.storage.sqlite.paging import Listing, page

_metadata = msgspec.json.Decoder(dict[str, str]).decode


def creating(record: ConversationRecord, items: Sequence[Raw]) -> Callable[[Rows], None]:
    """The change that writes a new conversation. Taken down now: the caller may go on changing it."""
    row, said = {"metadata": msgspec.json.encode(record.metadata)}, item_columns(items)

    def create(rows: Rows) -> None:
        rows.run(
            "INSERT INTO conversations (tenant, key_id, id, created_at, metadata)"
            " VALUES (:tenant, :key_id, :id, :created_at, :metadata) ON CONFLICT DO NOTHING",
            id=record.id,
            created_at=record.created_at,
            **row,
        )
        append(rows, record.id, said)

    return create


def get(rows: Rows, conversation_id: str) -> ConversationRecord | None:
    """A conversation, without its items."""
    found = rows.one(
        "SELECT created_at, metadata FROM conversations WHERE tenant = :tenant AND id = :id",
        id=conversation_id,
    )
    return None if found is None else ConversationRecord(conversation_id, found[0], _metadata(found[1]))


def update(rows: Rows, conversation_id: str, metadata: bytes) -> ConversationRecord | None:
    """Other metadata, as JSON."""
    rows.run(
        "UPDATE conversations SET metadata = :metadata WHERE tenant = :tenant AND id = :id",
        id=conversation_id,
        metadata=metadata,
    )
    return get(rows, conversation_id)


def delete(rows: Rows, conversation_id: str) -> bool:
    """The items go with it: they refer to it."""
    return rows.run("DELETE FROM conversations WHERE tenant = :tenant AND id = :id", id=conversation_id).rowcount > 0


def append(rows: Rows, conversation_id: str, items: Sequence[Column]) -> bool:
    """Items at the end, but those that are there already; whether there is such a conversation."""
    key = _key(rows, conversation_id)
    if key is None:
        return False
    rows.run_each(
        "INSERT INTO conversation_items (tenant, conversation, id, is_reference, body)"
        " VALUES (:tenant, :conversation, :id, :is_reference, :body) ON CONFLICT DO NOTHING",
        ({**item, "conversation": key} for item in items),
    )
    return True


def item_page(rows: Rows, conversation_id: str, query: PageQuery) -> Page | None:
    """A page of the items."""
    key = _key(rows, conversation_id)
    if key is None:
        return None
    listing = Listing("conversation_items", "conversation = :conversation", {"conversation": key})
    bodies, more = page(rows, listing, "body", query)
    return Page(read_items(bodies), more)


def all_items(rows: Rows, conversation_id: str) -> list[Raw] | None:
    """Every item, in the order of arrival."""
    key = _key(rows, conversation_id)
    if key is None:
        return None
    found = rows.run(
        "SELECT body FROM conversation_items WHERE tenant = :tenant AND conversation = :key ORDER BY key", key=key
    )
    return read_items(body for (body,) in found)


def get_item(rows: Rows, conversation_id: str, item_id: str) -> Raw | None:
    """One item."""
    found = rows.one(
        "SELECT body FROM conversation_items WHERE tenant = :tenant AND conversation = :key AND id = :id",
        key=_key(rows, conversation_id),
        id=item_id,
    )
    return None if found is None else read_items([found[0]])[0]


def delete_item(rows: Rows, conversation_id: str, item_id: str) -> bool:
    """Whether it was there."""
    gone = rows.run(
        "DELETE FROM conversation_items WHERE tenant = :tenant AND conversation = :key AND id = :id",
        key=_key(rows, conversation_id),
        id=item_id,
    )
    return gone.rowcount > 0


def _key(rows: Rows, conversation_id: str) -> int | None:
    found = rows.one("SELECT key FROM conversations WHERE tenant = :tenant AND id = :id", id=conversation_id)
    return None if found is None else int(found[0])
