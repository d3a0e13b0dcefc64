"""SQL statements for conversations and their items, scoped to one tenant. No threads, no asyncio."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from antwort.api.items import Raw
from antwort.engine.stores import ConversationRecord, PageQuery, RecordPage
from antwort.storage.sql.columns import RowValues, decode_items, item_rows
from antwort.storage.sql.paging import PagedQuery, read_page
from antwort.storage.sql.rows import TenantRows

_metadata = msgspec.json.Decoder(dict[str, str]).decode


def create_change(record: ConversationRecord, items: Sequence[Raw]) -> Callable[[TenantRows], None]:
    """The change that inserts a conversation. Encodes it now, because the caller may modify it later."""
    row, appended = {"metadata": msgspec.json.encode(record.metadata)}, item_rows(items)

    def create(rows: TenantRows) -> None:
        rows.execute(
            "INSERT INTO conversations (tenant, key_id, id, created_at, metadata)"
            " VALUES (:tenant, :key_id, :id, :created_at, :metadata) ON CONFLICT DO NOTHING",
            id=record.id,
            created_at=record.created_at,
            **row,
        )
        append(rows, record.id, appended)

    return create


def get(rows: TenantRows, conversation_id: str) -> ConversationRecord | None:
    """A conversation, without its items."""
    found = rows.fetchone(
        "SELECT created_at, metadata FROM conversations WHERE tenant = :tenant AND id = :id", id=conversation_id
    )
    return None if found is None else ConversationRecord(conversation_id, found[0], _metadata(found[1]))


def update(rows: TenantRows, conversation_id: str, metadata: bytes) -> ConversationRecord | None:
    """Replace the metadata (JSON)."""
    rows.execute(
        "UPDATE conversations SET metadata = :metadata WHERE tenant = :tenant AND id = :id",
        id=conversation_id,
        metadata=metadata,
    )
    return get(rows, conversation_id)


def append(rows: TenantRows, conversation_id: str, items: Sequence[RowValues]) -> bool:
    """Append items, except those whose id exists. Returns whether the conversation exists."""
    key = rows.key("conversations", conversation_id, lock=True)  # concurrent items keep one order
    if key is None:
        return False
    rows.executemany(
        "INSERT INTO conversation_items (tenant, conversation, id, is_reference, body)"
        " VALUES (:tenant, :conversation, :id, :is_reference, :body) ON CONFLICT DO NOTHING",
        ({**item, "conversation": key} for item in items),
    )
    return True


def item_page(rows: TenantRows, conversation_id: str, query: PageQuery) -> RecordPage | None:
    """A page of the items."""
    key = rows.key("conversations", conversation_id)
    if key is None:
        return None
    listing = PagedQuery("conversation_items", "conversation = :conversation", {"conversation": key})
    return read_page(rows, listing, "body", query, decode_items)


def all_items(rows: TenantRows, conversation_id: str) -> list[Raw] | None:
    """All items, in order of insertion."""
    key = rows.key("conversations", conversation_id)
    if key is None:
        return None
    found = rows.execute(
        "SELECT body FROM conversation_items WHERE tenant = :tenant AND conversation = :key ORDER BY key", key=key
    )
    return decode_items(found)


def get_item(rows: TenantRows, conversation_id: str, item_id: str) -> Raw | None:
    """One item."""
    found = rows.fetchone(
        "SELECT body FROM conversation_items WHERE tenant = :tenant AND conversation = :key AND id = :id",
        key=rows.key("conversations", conversation_id),
        id=item_id,
    )
    return None if found is None else decode_items([found])[0]


def delete_item(rows: TenantRows, conversation_id: str, item_id: str) -> bool:
    """Delete an item. Returns whether it existed."""
    deleted = rows.execute(
        "DELETE FROM conversation_items WHERE tenant = :tenant AND conversation = :key AND id = :id",
        key=rows.key("conversations", conversation_id),
        id=item_id,
    )
    return deleted.rowcount > 0
