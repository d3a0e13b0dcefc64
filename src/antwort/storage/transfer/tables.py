"""The tables of an export, in the order in which their rows can be inserted.

All columns of these tables are exported, so a new column needs no change here, unless it means nothing in another
store: then it belongs into `Table.replaced` or `Table.left_out`. A new table needs an entry in `TABLES` or in
`NOT_EXPORTED`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_LOST = "'The container was imported from another store, without its sandbox.'"


@dataclass(frozen=True)
class Table:
    """A table, with its rows ordered by `order`. All strings are constants of this module."""

    name: str
    order: tuple[str, ...] = ("key",)
    parents: Mapping[str, str] = field(default_factory=dict[str, str])
    """Columns with keys of another table, and that table."""
    condition: str = "1 = 1"
    replaced: Mapping[str, str] = field(default_factory=dict[str, str])
    """Columns whose values mean nothing in another store, and the SQL of the exported value."""
    left_out: frozenset[str] = frozenset()
    """Columns that are not exported; they get their default."""


FILES: Final = Table("files", left_out=frozenset({"blob"}))
"""Each row follows its content, which gets a new name in the other store."""

TABLES: Final = (
    Table("responses", left_out=frozenset({"replica", "cancel_requested"})),
    Table("response_items", parents={"response": "responses"}),
    Table("events", order=("response", "sequence"), parents={"response": "responses"}),
    Table("checkpoint_steps", order=("response", "number"), parents={"response": "responses"}),
    Table("conversations"),
    Table("conversation_items", parents={"conversation": "conversations"}),
    FILES,
    # Sandboxes and the files in them do not move, so a container is exported as if the server had been restarted.
    Table(
        "containers",
        replaced={
            "sandbox": "NULL",
            "lost": f"CASE WHEN status = 'running' AND sandbox IS NOT NULL THEN {_LOST} ELSE lost END",
            "disk": "CASE WHEN status = 'running' THEN 0 ELSE disk END",
        },
        left_out=frozenset({"replica", "used_by", "uploading"}),
    ),
    Table(
        "container_files",
        parents={"container": "containers"},
        condition="container IN (SELECT key FROM containers WHERE status = 'expired')",
    ),
    Table("container_skills", order=("container", "number"), parents={"container": "containers"}),
    Table("skills"),
    Table("skill_versions", parents={"skill": "skills"}),
)

NOT_EXPORTED: Final = {
    "antwort_migrations": "the version of the schema",
    "store_identity": "every store has its own",
    "replicas": "the processes that use this database",
    "jobs": "times of periodic work on this database",
    "rate_limits": "the last minute of the API keys",
    "running_slots": "what runs on the replicas now",
}
"""The tables that an export leaves out, and why."""
