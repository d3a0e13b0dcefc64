"""Between dataclasses and JSON: reading, writing, and schemas. No I/O, no knowledge of prompts.

`parse` and `dump` are msgspec with our errors. `strict_schema` and `parse_strict`
belong together: the one tells a model what to write, the other reads it.
"""

from __future__ import annotations

from weakincentives.serde.codec import dump, dump_json, parse, parse_json, parse_strict
from weakincentives.serde.schema import schema, strict_schema

__all__ = ["dump", "dump_json", "parse", "parse_json", "parse_strict", "schema", "strict_schema"]
