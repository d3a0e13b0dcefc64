"""SQL statements for responses whose replica has ended, and for requests to cancel one. No threads, no asyncio.

A response belongs to the replica in its column `replica`. Only that one may write to it (`responses._own_row`), until
another one claims it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from antwort.engine.stores import ClaimedResponse, Owner
from antwort.storage.sql.responses import UNFINISHED, UnreadableResponse, decode
from antwort.storage.sql.rows import Rows, TenantRows


@dataclass
class ResponseClaims:
    """The outcome of a claim."""

    claimed: list[ClaimedResponse] = field(default_factory=list[ClaimedResponse])
    unreadable: dict[str, UnreadableResponse] = field(default_factory=dict[str, UnreadableResponse])
    """By id: found, and not claimed. Another version of the server may read them."""


def claim(
    rows: Rows, replica: str, limit: int, *, excluded: Sequence[str] = (), claimed_before: Sequence[str] = ()
) -> ResponseClaims:
    """Claim unfinished responses of all tenants whose replica does not live, oldest first, except some ids.

    `claimed_before` are those of a claim by this replica whose outcome is not known. Two statements, because
    PostgreSQL may run the subquery of an UPDATE more than once.
    """
    found = rows.execute(
        "SELECT tenant, key_id, id, cancel_requested, key, body, request FROM responses"  # noqa: S608 - constants of the dialect
        f" WHERE {UNFINISHED} AND (replica IS NULL OR replica <> :replica"
        f" AND replica NOT IN ({rows.dialect.live_replicas})"
        f" OR replica = :replica AND id {rows.member_of('claimed_before')})"
        f" AND NOT id {rows.member_of('excluded')}"
        f" ORDER BY key LIMIT :limit{rows.dialect.skip_locked}",
        replica=replica,
        limit=limit,
        claimed_before=rows.dialect.as_list(claimed_before),
        excluded=rows.dialect.as_list(excluded),
    ).fetchall()
    outcome, keys = ResponseClaims(), list[int]()
    for tenant, key_id, identifier, cancel_requested, key, body, request in found:
        owner = Owner(tenant, key_id)
        try:
            stored = decode(rows.of(owner), key, body, request)
        except UnreadableResponse as error:
            outcome.unreadable[identifier] = error
            continue
        outcome.claimed.append(ClaimedResponse(owner, stored, bool(cancel_requested)))
        keys.append(key)
    rows.executemany(
        "UPDATE responses SET replica = :replica WHERE key = :key", ({"replica": replica, "key": key} for key in keys)
    )
    return outcome


def request_cancel(rows: TenantRows, response_id: str) -> str | None:
    """Note that a response is to be cancelled. Its replica, which may be the empty string; None if it has ended."""
    of_response = "tenant = :tenant AND id = :id"
    found = rows.fetchone(
        f"SELECT coalesce(replica, ''), cancel_requested FROM responses WHERE {of_response} AND {UNFINISHED}"  # noqa: S608 - constant conditions
        f"{rows.dialect.row_lock}",
        id=response_id,
    )
    if found is None:
        return None
    replica, is_requested = found
    if not is_requested:
        rows.execute(f"UPDATE responses SET cancel_requested = TRUE WHERE {of_response}", id=response_id)  # noqa: S608 - a constant condition
    return replica


def own_unfinished(rows: Rows, replica: str) -> dict[str, bool]:
    """The unfinished responses of a replica, and whether they are to be cancelled."""
    found = rows.execute(
        f"SELECT id, cancel_requested FROM responses WHERE replica = :replica AND {UNFINISHED}",  # noqa: S608 - a constant condition
        replica=replica,
    )
    return {identifier: bool(is_requested) for identifier, is_requested in found.fetchall()}
