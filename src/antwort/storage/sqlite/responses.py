"""Responses, their items and events, as statements about one tenant's rows. No threads, no asyncio."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from antwort.api.items import Raw
from antwort.api.responses import Response
from antwort.engine.stores import (
    MAX_EVENT_READ_BYTES,
    Owner,
    Page,
    PageQuery,
    StoredResponse,
)
from antwort.storage.sqlite.columns import Column, item_columns, read_items
from antwort.storage.sqlite.conversations import append
from antwort.storage.sqlite.database import Rows
from antwort.storage.sqlite.paging import Listing, page

_INPUT, _OUTPUT = 0, 1

# Keys of the `request` column that hold fields of `StoredResponse`, beside those of the request itself.
_HAD_SECRETS, _RESUMED = "antwort:had_secrets", "antwort:resumed"

_response = msgspec.json.Decoder(Response).decode
_request = msgspec.json.Decoder(dict[str, Any]).decode


def beginning(stored: StoredResponse) -> Callable[[Rows], None]:
    """The change that writes a response which has just begun. Taken down now: the caller may go on changing it."""
    row = _columns(stored.response) | {
        "previous": stored.response.previous_response_id,
        "request": msgspec.json.encode(
            stored.request
            | ({_HAD_SECRETS: True} if stored.had_secrets else {})
            | ({_RESUMED: stored.resumed} if stored.resumed else {})
        ),
    }
    given, made = item_columns(stored.input), item_columns(stored.response.output)

    def begin(rows: Rows) -> None:
        key = _key(rows, stored.response.id)
        if key is None:
            key = rows.run(
                "INSERT INTO responses (tenant, key_id, id, previous, status, body, request)"
                " VALUES (:tenant, :key_id, :id, :previous, :status, :body, :request)",
                **row,
            ).lastrowid
        else:
            rows.run(
                "UPDATE responses SET previous = :previous, status = :status, body = :body, request = :request"
                " WHERE tenant = :tenant AND id = :id",
                **row,
            )
            for table in ("response_items", "events"):
                rows.run(
                    f"DELETE FROM {table} WHERE tenant = :tenant AND response = :key",  # noqa: S608 — one of the two above
                    key=key,
                )
        _insert(rows, key, _INPUT, given)
        _insert(rows, key, _OUTPUT, made)

    return begin


def finishing(
    response: Response, appended: Sequence[Raw], events: Sequence[tuple[int, bytes]]
) -> Callable[[Rows], None]:
    """The change that writes how a response stands, and adds to its conversation and events. Taken down now."""
    row, made, said = _columns(response), item_columns(response.output), item_columns(appended)
    conversation = response.conversation.id if response.conversation else None

    def finish(rows: Rows) -> None:
        key = _key(rows, response.id)
        if key is None:
            return
        rows.run("UPDATE responses SET status = :status, body = :body WHERE tenant = :tenant AND id = :id", **row)
        rows.run(
            "DELETE FROM response_items WHERE tenant = :tenant AND response = :key AND part = :part",
            key=key,
            part=_OUTPUT,
        )
        _insert(rows, key, _OUTPUT, made)
        _insert_events(rows, key, events)
        if conversation is not None:
            append(rows, conversation, said)

    return finish


def get(rows: Rows, response_id: str) -> StoredResponse | None:
    """A response with its items."""
    found = rows.one(
        "SELECT key, body, request FROM responses WHERE tenant = :tenant AND id = :id",
        id=response_id,
    )
    return None if found is None else _stored(rows, *found)


def delete(rows: Rows, response_id: str) -> bool:
    """Items and events go with it: they refer to it."""
    return rows.run("DELETE FROM responses WHERE tenant = :tenant AND id = :id", id=response_id).rowcount > 0


def history(rows: Rows, response_id: str) -> list[Raw] | None:
    """All items of a chain, in one query. What a response follows was there before it, so the chain has an end."""
    found = rows.run(
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
    return read_items(body for (body,) in found if body is not None) if found else None


def input_page(rows: Rows, response_id: str, query: PageQuery) -> Page | None:
    """A page of what a response was asked with."""
    key = _key(rows, response_id)
    if key is None:
        return None
    listing = Listing("response_items", "response = :response AND part = :part", {"response": key, "part": _INPUT})
    bodies, more = page(rows, listing, "body", query)
    return Page(read_items(bodies), more)


def find_items(rows: Rows, ids: Sequence[str]) -> dict[str, Raw]:
    """Items by id. A conversation's own win over those of responses: they are what a client sees last."""
    wanted = msgspec.json.encode(ids).decode()
    bodies: dict[str, bytes] = {}
    for table in ("response_items", "conversation_items"):
        bodies |= rows.run(
            f"""
            SELECT id, body FROM {table} WHERE key IN (
                SELECT max(key) FROM {table}
                WHERE tenant = :tenant AND id IN (SELECT value FROM json_each(:ids)) AND NOT is_reference
                GROUP BY id
            )
            """,  # noqa: S608 — one of the two above
            ids=wanted,
        )
    return dict(zip(bodies, read_items(bodies.values()), strict=True))


def append_events(rows: Rows, response_id: str, events: Sequence[tuple[int, bytes]]) -> None:
    """Keep events, where there is still a response that they are of."""
    key = _key(rows, response_id)
    if key is not None:
        _insert_events(rows, key, events)


def _insert_events(rows: Rows, key: int, events: Sequence[tuple[int, bytes]]) -> None:
    rows.run_each(
        "INSERT OR REPLACE INTO events (tenant, response, sequence, frame)"
        " VALUES (:tenant, :response, :sequence, :frame)",
        ({"response": key, "sequence": sequence, "frame": frame} for sequence, frame in events),
    )


def read_events(rows: Rows, response_id: str, after: int) -> list[tuple[int, bytes]]:
    """Events behind a sequence number, as many as are read at a time."""
    found = rows.run(
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
    """Everybody's responses that have not ended, oldest first."""
    found = connection.execute(
        "SELECT tenant, key_id, key, body, request FROM responses"
        " WHERE status IN ('queued', 'in_progress') ORDER BY key"
    ).fetchall()
    owned = ((Owner(tenant, key_id), columns) for tenant, key_id, *columns in found)
    return [(owner, _stored(Rows(connection, owner), *columns)) for owner, columns in owned]


def _columns(response: Response) -> Column:
    body = msgspec.json.encode(msgspec.structs.replace(response, output=[]))
    return {"id": response.id, "status": response.status, "body": body}


def _stored(rows: Rows, key: int, body: bytes, request: bytes) -> StoredResponse:
    given: list[bytes] = []
    made: list[bytes] = []
    found = rows.run(
        "SELECT part, body FROM response_items WHERE tenant = :tenant AND response = :key ORDER BY part, key",
        key=key,
    )
    for part, item in found:
        (made if part == _OUTPUT else given).append(item)
    response = _response(body)
    response.output = read_items(made)
    asked = _request(request)
    return StoredResponse(
        response=response,
        input=read_items(given),
        had_secrets=asked.pop(_HAD_SECRETS, False),
        resumed=asked.pop(_RESUMED, 0),
        request=asked,
    )


def _key(rows: Rows, response_id: str) -> int | None:
    found = rows.one("SELECT key FROM responses WHERE tenant = :tenant AND id = :id", id=response_id)
    return None if found is None else int(found[0])


def _insert(rows: Rows, key: int | None, part: int, items: Sequence[Column]) -> None:
    if items:
        rows.run_each(
            "INSERT INTO response_items (tenant, response, part, id, is_reference, body)"
            " VALUES (:tenant, :response, :part, :id, :is_reference, :body)",
            ({**item, "response": key, "part": part} for item in items),
        )
