"""Serialisation: dataclasses to and from JSON, and JSON schemas. No I/O.

    codec    `parse` and `dump`: msgspec with this package's errors
    schema   `schema` and `strict_schema`: JSON schemas of dataclasses
    strict   converts a JSON schema to the strict subset that model providers enforce
    conform  adapts data that was written for a strict schema, for `parse_strict`

`strict_schema` is sent to a model; `parse_strict` reads what the model writes for it.
"""

from __future__ import annotations

from weakincentives.serde.codec import dump, dump_json, parse, parse_json, parse_strict
from weakincentives.serde.schema import schema, strict_schema

__all__ = ["dump", "dump_json", "parse", "parse_json", "parse_strict", "schema", "strict_schema"]
