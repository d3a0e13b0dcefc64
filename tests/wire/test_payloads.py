"""Prepared responses match the types of OpenAI's SDK."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from openai.types.responses import Response, ResponseOutputItem
from pydantic import TypeAdapter

FILES = sorted(path for path in Path(__file__).parent.glob("*.json") if path.name != "envelope.json")
ENVELOPE = json.loads((Path(__file__).parent / "envelope.json").read_text(encoding="utf-8"))
OF_THE_FUTURE = ("telepathy_call", "citation_of_the_future")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_payloads_match_the_sdk_types(path):
    for part in json.loads(path.read_text(encoding="utf-8")):
        whole = {**ENVELOPE, **part, "output": []}
        assert Response.model_validate(whole).status == whole["status"]
        for item in part["output"]:
            if not any(word in json.dumps(item) for word in OF_THE_FUTURE):
                read = TypeAdapter(ResponseOutputItem).validate_python(item)
                assert (read.type, read.id) == (item["type"], item["id"])
