"""SQL statements for responses, their items and events, scoped to one tenant. No threads, no asyncio."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from antwort.api.items import Raw
from antwort.api.responses import Response
from antwort.engine.stores import (
    MAX_EVENT_READ_BYTES,
    PageQuery,
    RecordPage,
    ResponseTakenOver,
    StoredResponse,
    StoredStep,
)
from antwort.storage.sql.columns import RowValues, decode_items, item_rows
from antwort.storage.sql.conversations import append
from antwort.storage.sql.paging import PagedQuery, read_page
from antwort.storage.sql.rows import TenantRows

UNFINISHED = "status IN ('queued', 'in_progress')"
"""The condition of the index `unfinished_responses`."""
_UNFINISHED_STATUSES = frozenset({"queued", "in_progress"})

_INPUT, _OUTPUT = 0, 1
_EVENTS_PER_QUERY = 64  # bounds the memory of one query: an event may hold images

# Keys of the `request` column that hold fields of `StoredResponse`, beside those of the request itself.
_HAD_SECRETS, _RESUMED = "antwort:had_secrets", "antwort:resumed"
_FIRST_SEQUENCE = "antwort:first_sequence"


class UnreadableResponse(Exception):
    """The columns of a response cannot be decoded: another version of the server wrote them, or they are damaged."""


_response = msgspec.json.Decoder(Response).decode
_request = msgspec.json.Decoder(dict[str, Any]).decode


def _own_row(rows: TenantRows, response_id: str, replica: str) -> tuple[int, str] | None:
    """The key and status of a response that this replica works on, locked; None if it was deleted.

    `ResponseTakenOver` if another replica works on it: this one was taken for dead.
    """
    found = rows.fetchone(
        f"SELECT key, status, replica FROM responses WHERE tenant = :tenant AND id = :id{rows.dialect.row_lock}",  # noqa: S608 - a constant lock clause
        id=response_id,
    )
    if found is None:
        return None
    key, status, owner = found
    if owner != replica:
        raise ResponseTakenOver(f"Response '{response_id}' was taken over by another replica of the server.")
    return int(key), status


def begin_change(stored: StoredResponse, replica: str) -> Callable[[TenantRows], None]:
    """The change that inserts a new response. Encodes it now, because the caller may modify it later."""
    row = _row_values(stored.response) | {
        "replica": replica,
        "previous": stored.response.previous_response_id,
        "request": _encode_request(stored),
    }
    input_rows, output_rows = item_rows(stored.input), item_rows(stored.response.output)

    def begin(rows: TenantRows) -> None:
        own = _own_row(rows, stored.response.id, replica)
        if own is None:
            inserted = rows.fetchone(
                "INSERT INTO responses (tenant, key_id, id, previous, status, body, request, replica)"
                " VALUES (:tenant, :key_id, :id, :previous, :status, :body, :request, :replica) RETURNING key",
                **row,
            )
            assert inserted is not None  # noqa: S101 - an INSERT returns its row
            key = int(inserted[0])
        else:
            key, _ = own
            rows.execute(
                "UPDATE responses SET previous = :previous, status = :status, body = :body, request = :request"
                " WHERE tenant = :tenant AND id = :id",
                **row,
            )
            rows.execute("DELETE FROM response_items WHERE tenant = :tenant AND response = :key", key=key)
            rows.execute("DELETE FROM events WHERE tenant = :tenant AND response = :key", key=key)
            _delete_steps(rows, key)
        _insert(rows, key, _INPUT, input_rows)
        _insert(rows, key, _OUTPUT, output_rows)

    return begin


def finish_change(
    response: Response, appended: Sequence[Raw], events: Sequence[tuple[int, bytes]], replica: str
) -> Callable[[TenantRows], None]:
    """The change that stores the state of a response, its conversation items and events. Encodes them now.

    It changes nothing where the response has ended otherwise: one that is written late, because the store refused it
    before, must not replace a cancellation that was stored meanwhile.
    """
    row = _row_values(response)
    output_rows, conversation_rows = item_rows(response.output), item_rows(appended)
    conversation = response.conversation.id if response.conversation else None
    has_ended = response.ended and response.background

    def finish(rows: TenantRows) -> None:
        own = _own_row(rows, response.id, replica)
        if own is None:
            return
        key, status = own
        if status not in (*_UNFINISHED_STATUSES, response.status):
            return
        rows.execute("UPDATE responses SET status = :status, body = :body WHERE tenant = :tenant AND id = :id", **row)
        output_items = "tenant = :tenant AND response = :key AND part = :part"
        rows.execute(f"DELETE FROM response_items WHERE {output_items}", key=key, part=_OUTPUT)  # noqa: S608 - a constant condition
        _insert(rows, key, _OUTPUT, output_rows)
        _insert_events(rows, key, events)
        if has_ended:
            _delete_steps(rows, key)
        if conversation is not None:
            append(rows, conversation, conversation_rows)

    return finish


def resume_change(stored: StoredResponse, after: int | None, replica: str) -> Callable[[TenantRows], int]:
    """The change that stores that a response is resumed, and deletes its events behind `after`."""
    row = _row_values(stored.response)

    def resume(rows: TenantRows) -> int:
        own = _own_row(rows, stored.response.id, replica)
        if own is None or own[1] not in _UNFINISHED_STATUSES:
            raise ResponseTakenOver(f"Response '{stored.response.id}' has ended, or was deleted.")
        key, _ = own
        request = rows.fetchone("SELECT request FROM responses WHERE tenant = :tenant AND key = :key", key=key)
        last = rows.fetchone(
            "SELECT coalesce(max(sequence), -1) FROM events WHERE tenant = :tenant AND response = :key", key=key
        )
        assert request is not None  # noqa: S101 - its row is locked
        assert last is not None  # noqa: S101 - an aggregate has one row
        # That of the row, not of `stored`: an attempt before this one may have deleted the events with higher numbers.
        first_sequence = max(_request(request[0]).get(_FIRST_SEQUENCE, 0), int(last[0]) + 1)
        if after is not None:
            rows.execute(
                "DELETE FROM events WHERE tenant = :tenant AND response = :key AND sequence > :after",
                key=key,
                after=after,
            )
        resumed = _encode_request(msgspec.structs.replace(stored, first_sequence=first_sequence))
        rows.execute(
            "UPDATE responses SET status = :status, body = :body, request = :request"
            " WHERE tenant = :tenant AND id = :id",
            **row,
            request=resumed,
        )
        return first_sequence

    return resume


def get(rows: TenantRows, response_id: str) -> StoredResponse | None:
    """A response with its items."""
    row = rows.fetchone("SELECT key, body, request FROM responses WHERE tenant = :tenant AND id = :id", id=response_id)
    return None if row is None else decode(rows, *row)


def is_unfinished(rows: TenantRows, response_id: str) -> bool:
    """Whether the response is queued or in progress."""
    condition = f"tenant = :tenant AND id = :id AND {UNFINISHED}"
    return rows.fetchone(f"SELECT 1 FROM responses WHERE {condition}", id=response_id) is not None  # noqa: S608 - a constant condition


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
    bodies: dict[str, bytes] = {}
    for table in ("response_items", "conversation_items"):
        bodies |= rows.execute(
            f"""
            SELECT id, body FROM {table} WHERE key IN (
                SELECT max(key) FROM {table}
                WHERE tenant = :tenant AND id {rows.member_of("ids")} AND NOT is_reference
                GROUP BY id
            )
            """,  # noqa: S608 - one of two constants
            ids=rows.dialect.as_list(ids),
        )
    return dict(zip(bodies, decode_items((body,) for body in bodies.values()), strict=True))


def append_events(
    rows: TenantRows,
    response_id: str,
    events: Sequence[tuple[int, bytes]],
    steps: Sequence[StoredStep],
    replica: str,
) -> None:
    """Append events and steps of the checkpoint, if the response still exists."""
    own = _own_row(rows, response_id, replica)
    if own is None:
        return
    key, _ = own
    _insert_events(rows, key, events)
    rows.executemany(
        "INSERT INTO checkpoint_steps (tenant, response, number, sequence, body)"
        " VALUES (:tenant, :response, :number, :sequence, :body)"
        " ON CONFLICT (response, number) DO UPDATE SET sequence = excluded.sequence, body = excluded.body",
        ({"response": key, **msgspec.structs.asdict(step)} for step in steps),
    )


def read_steps(rows: TenantRows, response_id: str) -> list[StoredStep]:
    """The steps of the checkpoint of a response."""
    found = rows.execute(
        "SELECT number, sequence, body FROM checkpoint_steps WHERE tenant = :tenant"
        " AND response = (SELECT key FROM responses WHERE tenant = :tenant AND id = :id) ORDER BY number",
        id=response_id,
    ).fetchall()
    return [StoredStep(number, sequence, bytes(body)) for number, sequence, body in found]


def _delete_steps(rows: TenantRows, key: int) -> None:
    rows.execute("DELETE FROM checkpoint_steps WHERE tenant = :tenant AND response = :key", key=key)


def _insert_events(rows: TenantRows, key: int, events: Sequence[tuple[int, bytes]]) -> None:
    rows.executemany(
        "INSERT INTO events (tenant, response, sequence, frame) VALUES (:tenant, :response, :sequence, :frame)"
        " ON CONFLICT (response, sequence) DO UPDATE SET frame = excluded.frame",
        ({"response": key, "sequence": sequence, "frame": frame} for sequence, frame in events),
    )


def read_events(rows: TenantRows, response_id: str, after: int) -> list[tuple[int, bytes]]:
    """Events after a sequence number, at most about `MAX_EVENT_READ_BYTES` bytes."""
    events: list[tuple[int, bytes]] = []
    size = 0
    while size < MAX_EVENT_READ_BYTES:
        found = rows.execute(
            """
            SELECT sequence, frame FROM events
            WHERE tenant = :tenant AND sequence > :after
            AND response = (SELECT key FROM responses WHERE tenant = :tenant AND id = :id)
            ORDER BY sequence LIMIT :limit
            """,
            id=response_id,
            after=events[-1][0] if events else after,
            limit=_EVENTS_PER_QUERY,
        ).fetchall()
        for number, frame in found:
            events.append((number, frame))
            size += len(frame)
            if size >= MAX_EVENT_READ_BYTES:
                break
        if len(found) < _EVENTS_PER_QUERY:
            break
    return events


def _encode_request(stored: StoredResponse) -> bytes:
    own: dict[str, int | bool] = {
        _HAD_SECRETS: stored.had_secrets,
        _RESUMED: stored.resumed,
        _FIRST_SEQUENCE: stored.first_sequence,
    }
    return msgspec.json.encode(stored.request | {name: value for name, value in own.items() if value})


def _row_values(response: Response) -> RowValues:
    body = msgspec.json.encode(msgspec.structs.replace(response, output=[]))
    return {"id": response.id, "status": response.status, "body": body}


def decode(rows: TenantRows, key: int, body: bytes, request: bytes) -> StoredResponse:
    """A response with its items, from columns of its row. `UnreadableResponse` if they cannot be decoded."""
    found = rows.execute(
        "SELECT part, body FROM response_items WHERE tenant = :tenant AND response = :key ORDER BY part, key", key=key
    ).fetchall()
    try:
        response, parameters = _response(body), _request(request)
        response.output = decode_items((item,) for part, item in found if part == _OUTPUT)
        given = decode_items((item,) for part, item in found if part == _INPUT)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise UnreadableResponse(str(error)) from error
    return StoredResponse(
        response=response,
        input=given,
        had_secrets=parameters.pop(_HAD_SECRETS, False),
        resumed=parameters.pop(_RESUMED, 0),
        first_sequence=parameters.pop(_FIRST_SEQUENCE, 0),
        request=parameters,
    )


def _insert(rows: TenantRows, key: int, part: int, items: Sequence[RowValues]) -> None:
    if items:
        rows.executemany(
            "INSERT INTO response_items (tenant, response, part, id, is_reference, body)"
            " VALUES (:tenant, :response, :part, :id, :is_reference, :body)",
            ({**item, "response": key, "part": part} for item in items),
        )
