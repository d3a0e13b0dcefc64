"""A table or column that is added later must not be forgotten in exports."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from antwort.storage.sqlite.migrations import migrate
from antwort.storage.transfer.tables import NOT_EXPORTED, TABLES


def test_every_table_of_the_schema_is_exported_or_listed_as_not_exported():
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection)
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}

    exported = {table.name for table in TABLES}
    assert tables - exported - set(NOT_EXPORTED) == set()
    assert exported <= tables
    assert not exported & set(NOT_EXPORTED)


def test_the_entries_of_the_tables_name_existing_columns_and_all_foreign_keys():
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection)
        for table in TABLES:
            columns = {row[1] for row in connection.execute(f"PRAGMA table_info({table.name})")}
            foreign = {row[3]: row[2] for row in connection.execute(f"PRAGMA foreign_key_list({table.name})")}
            assert {*table.order, *table.replaced, *table.left_out} <= columns
            assert dict(table.parents) == foreign


def test_parents_are_inserted_before_their_children():
    names = [table.name for table in TABLES]
    for table in TABLES:
        assert all(names.index(parent) < names.index(table.name) for parent in table.parents.values())
