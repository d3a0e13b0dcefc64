"""Translation of psycopg errors into `StoreFault`: failures of the server that may pass without a change here."""

from __future__ import annotations

import psycopg
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from antwort.engine.stores import StoreFault

_REASONS = {
    "08": "the connection to PostgreSQL broke",
    "0A000": "PostgreSQL is a standby server, or the tables were changed",
    "25006": "PostgreSQL is read-only",
    "25P03": "PostgreSQL ended a transaction in which this process was stopped",
    "25P04": "PostgreSQL ended a transaction that took too long",
    "28": "PostgreSQL rejects the user or the password",
    "3D": "the database does not exist",
    "3F": "the schema of `search_path` does not exist, or the PostgreSQL user lacks the privilege to use it",
    "40": "PostgreSQL cancelled the transaction because of a concurrent one",
    "42501": "the PostgreSQL user lacks a privilege",
    "42703": "the tables are those of another version of antwort",
    "42P01": "the tables are missing, or those of another version of antwort",
    "53100": "the disk of PostgreSQL is full",
    "53200": "PostgreSQL is out of memory",
    "53": "PostgreSQL has no resources left",
    "54": "a limit of PostgreSQL was exceeded",
    "55P03": "a lock in PostgreSQL was not granted in time",
    "57014": "PostgreSQL did not execute a statement in time",
    "57": "PostgreSQL is stopping or starting",
    "58": "I/O error in PostgreSQL",
    "XX": "PostgreSQL reports damaged data",
}
"""Reasons by SQLSTATE or its class, with an external cause. Every other error is a programming error."""

RETRIED_CLASS = "40"
"""SQLSTATE class of transactions that PostgreSQL rolled back because of a concurrent one: to be run again."""


def translate_error(error: Exception) -> Exception:
    """The `StoreFault` for an error of the server or the connection; any other error is returned unchanged."""
    reason = _reason(error)
    if reason is None:
        return error
    fault = StoreFault(f"The store failed: {reason}.")
    fault.__cause__ = error
    return fault


def is_rolled_back(error: Exception) -> bool:
    """Whether PostgreSQL rolled the transaction back because of a concurrent one."""
    return isinstance(error, psycopg.Error) and (error.sqlstate or "").startswith(RETRIED_CLASS)


def is_outdated(error: Exception) -> bool:
    """Whether the connection has prepared a statement for tables that were changed since; or the server is a standby.

    A standby reports the same state for tables that are not logged.
    """
    return isinstance(error, psycopg.errors.FeatureNotSupported)


def is_unusable(error: Exception) -> bool:
    """Whether another connection may work and this one may not: also in a session that stays read-only."""
    return is_outdated(error) or isinstance(error, psycopg.errors.ReadOnlySqlTransaction)


def is_connection_error(error: Exception) -> bool:
    """Whether the connection broke, or the server ended it: a commit on it may or may not have taken effect."""
    if not isinstance(error, psycopg.Error):
        return False
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError)
    return error.sqlstate.startswith(("08", "25P03", "25P04", "57P"))


def _reason(error: Exception) -> str | None:
    if isinstance(error, (PoolTimeout, TooManyRequests)):
        return "no connection to PostgreSQL in time"
    if isinstance(error, PoolClosed):
        return "the store is closed"
    if not isinstance(error, psycopg.Error):
        return None
    state = error.sqlstate
    if state is None:  # an error of the client: the connection
        return _REASONS["08"] if isinstance(error, psycopg.OperationalError) else None
    return _REASONS.get(state) or _REASONS.get(state[:2])
