"""SQL statements for responses, their items and events, scoped to one tenant. No threads, no asyncio."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from antwort.api.items import Raw
from antwort.api.responses import Response
from antwort.engine.stores import MAX_EVENT_READ_BYTES, Owner, PageQuery, RecordPage, StoredResponse
from antwort.storage.sqlite.columns import RowValues, decode_items, item_rows
from antwort.storage.sqlite.conversations import append
from antwort.storage.sqlite.database import TenantRows
from antwort.storage.sqlite.paging import PagedQuery, read_page

_INPUT, _OUTPUT = 0, 1

# Keys of the `request` column that hold fields of `StoredResponse`, beside those of the request itself.
_HAD_SECRETS, _RESUMED = "antwort:had_secrets", "antwort:resumed"

_response = msgspec.json.Decoder(Response).decode
_request = msgspec.json.Decoder(dict[str, Any]).decode


def begin_change(stored: StoredResponse) -> Callable[[TenantRows], None]:
    """The change that inserts a new response. Encodes it now, because the caller may modify it later."""
    row = _row_values(stored.response) | {
        "previous": stored.response.previous_response_id,
        "request": msgspec.json.encode(
            stored.request
            | ({_HAD_SECRETS: True} if stored.had_secrets else {})
            | ({_RESUMED: stored.resumed} if stored.resumed else {})
        ),
    }
    input_rows, output_rows = item_rows(stored.input), item_rows(stored.response.output)

    def begin(rows: TenantRows) -> None:
        key = rows.key("responses", stored.response.id)
        if key is None:
            key = rows.execute(
                "INSERT INTO responses (tenant, key_id, id, previous, status, body, request)"
                " VALUES (:tenant, :key_id, :id, :previous, :status, :body, :request)",
                **row,
            ).lastrowid
        else:
            rows.execute(
                "UPDATE responses SET previous = :previous, status = :status, body = :body, request = :request"
                " WHERE tenant = :tenant AND id = :id",
                **row,
            )
            rows.execute("DELETE FROM response_items WHERE tenant = :tenant AND response = :key", key=key)
            rows.execute("DELETE FROM events WHERE tenant = :tenant AND response = :key", key=key)
        _insert(rows, key, _INPUT, input_rows)
        _insert(rows, key, _OUTPUT, output_rows)

    return begin


def finish_change(
    response: Response, appended: Sequence[Raw], events: Sequence[tuple[int, bytes]]
) -> Callable[[TenantRows], None]:
    """The change that stores the state of a response, its conversation items and events. Encodes them now."""
    row = _row_values(response)
    output_rows, conversation_rows = item_rows(response.output), item_rows(appended)
    conversation = response.conversation.id if response.conversation else None

    def finish(rows: TenantRows) -> None:
        key = rows.key("responses", response.id)
        if key is None:
            return
        rows.execute("UPDATE responses SET status = :status, body = :body WHERE tenant = :tenant AND id = :id", **row)
        output_items = "tenant = :tenant AND response = :key AND part = :part"
        rows.execute(f"DELETE FROM response_items WHERE {output_items}", key=key, part=_OUTPUT)  # noqa: S608 - a constant condition
        _insert(rows, key, _OUTPUT, output_rows)
        _insert_events(rows, key, events)
        if conversation is not None:
            append(rows, conversation, conversation_rows)

    return finish


def get(rows: TenantRows, response_id: str) -> StoredResponse | None:
    """A response with its items."""
    row = rows.fetchone("SELECT key, body, request FROM responses WHERE tenant = :tenant AND id = :id", id=response_id)
    return None if row is None else _stored(rows, *row)


def history(rows: TenantRows, response_id: str) -> list[Raw] | None:
    """All items of the `previous_response_id` chain, in one query. Keys decrease along it, so it is finite."""
    found = rows.execute(
        """
        WITH RECURSIVE chain (key, previous) AS (
            SELECT key, previous FROM responses WHERE tenant = :tenant AND id = :id
            UNION ALL
            SELECT earlier.key, earlier.previous
            FROM chain JOIN responses AS earlier
            ON earlier.tenant = :tenant AND earlier.id = chain.previous AND earlier.key < chain.key
        )
        SELECT item.body FROM chain LEFT JOIN response_items AS item
        ON item.response = chain.key AND item.tenant = :tenant
        ORDER BY chain.key, item.part, item.key
        """,
        id=response_id,
    ).fetchall()
    return decode_items(row for row in found if row[0] is not None) if found else None


def input_page(rows: TenantRows, response_id: str, query: PageQuery) -> RecordPage | None:
    """A page of the input items of a response."""
    key = rows.key("responses", response_id)
    if key is None:
        return None
    listing = PagedQuery("response_items", "response = :response AND part = :part", {"response": key, "part": _INPUT})
    return read_page(rows, listing, "body", query, decode_items)


def find_items(rows: TenantRows, ids: Sequence[str]) -> dict[str, Raw]:
    """Items by id. Items of conversations take precedence over those of responses: clients see them last."""
    encoded_ids = msgspec.json.encode(ids).decode()
    bodies: dict[str, bytes] = {}
    for table in ("response_items", "conversation_items"):
        bodies |= rows.execute(
            f"""
            SELECT id, body FROM {table} WHERE key IN (
                SELECT max(key) FROM {table}
                WHERE tenant = :tenant AND id IN (SELECT value FROM json_each(:ids)) AND NOT is_reference
                GROUP BY id
            )
            """,  # noqa: S608 - one of two constants
            ids=encoded_ids,
        )
    return dict(zip(bodies, decode_items((body,) for body in bodies.values()), strict=True))


def append_events(rows: TenantRows, response_id: str, events: Sequence[tuple[int, bytes]]) -> None:
    """Append events, if the response still exists."""
    key = rows.key("responses", response_id)
    if key is not None:
        _insert_events(rows, key, events)


def _insert_events(rows: TenantRows, key: int, events: Sequence[tuple[int, bytes]]) -> None:
    rows.executemany(
        "INSERT OR REPLACE INTO events (tenant, response, sequence, frame)"
        " VALUES (:tenant, :response, :sequence, :frame)",
        ({"response": key, "sequence": sequence, "frame": frame} for sequence, frame in events),
    )


def read_events(rows: TenantRows, response_id: str, after: int) -> list[tuple[int, bytes]]:
    """Events after a sequence number, at most about `MAX_EVENT_READ_BYTES` bytes."""
    found = rows.execute(
        """
        SELECT sequence, frame FROM events
        WHERE tenant = :tenant AND sequence > :after
        AND response = (SELECT key FROM responses WHERE tenant = :tenant AND id = :id)
        ORDER BY sequence
        """,
        id=response_id,
        after=after,
    )
    events: list[tuple[int, bytes]] = []
    size = 0
    for number, frame in found:
        events.append((number, frame))
        size += len(frame)
        if size >= MAX_EVENT_READ_BYTES:
            break
    found.close()
    return events


def unfinished(connection: sqlite3.Connection) -> list[tuple[Owner, StoredResponse]]:
    """Unfinished responses of all tenants, oldest first."""
    found = connection.execute(
        "SELECT tenant, key_id, key, body, request FROM responses"
        " WHERE status IN ('queued', 'in_progress') ORDER BY key"
    ).fetchall()
    owned = ((Owner(tenant, key_id), columns) for tenant, key_id, *columns in found)
    return [(owner, _stored(TenantRows(connection, owner), *columns)) for owner, columns in owned]


def _row_values(response: Response) -> RowValues:
    body = msgspec.json.encode(msgspec.structs.replace(response, output=[]))
    return {"id": response.id, "status": response.status, "body": body}


def _stored(rows: TenantRows, key: int, body: bytes, request: bytes) -> StoredResponse:
    found = rows.execute(
        "SELECT part, body FROM response_items WHERE tenant = :tenant AND response = :key ORDER BY part, key", key=key
    ).fetchall()
    response, parameters = _response(body), _request(request)
    response.output = decode_items((item,) for part, item in found if part == _OUTPUT)
    return StoredResponse(
        response=response,
        input=decode_items((item,) for part, item in found if part == _INPUT),
        had_secrets=parameters.pop(_HAD_SECRETS, False),
        resumed=parameters.pop(_RESUMED, 0),
        request=parameters,
    )


def _insert(rows: TenantRows, key: int | None, part: int, items: Sequence[RowValues]) -> None:
    if items:
        rows.executemany(
            "INSERT INTO response_items (tenant, response, part, id, is_reference, body)"
            " VALUES (:tenant, :response, :part, :id, :is_reference, :body)",
            ({**item, "response": key, "part": part} for item in items),
        )
