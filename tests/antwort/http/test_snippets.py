from __future__ import annotations

import ast
import json
import re
import shlex

import pytest

from antwort.http.snippets import snippets


@pytest.mark.parametrize("locked", [True, False])
@pytest.mark.parametrize("code", [True, False])
def test_both_ask_the_same(locked, code):
    text = snippets("http://127.0.0.1:8080/v1", requires_key=locked, has_code_interpreter=code)
    found = re.fullmatch(r"In a shell:\n\n(.*)\n\nIn Python:\n\n(.*)", text, re.DOTALL)
    assert found is not None
    words = shlex.split(found[1].replace("\\\n", ""))
    body = json.loads(words[-1])
    call = next(
        node
        for node in ast.walk(ast.parse(found[2]))
        if isinstance(node, ast.Call) and "create" in ast.unparse(node.func)
    )
    asked = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}

    assert words[:3] == ["curl", "-s", "http://127.0.0.1:8080/v1/responses"]
    assert body == asked
    assert ("tools" in body) is code
    assert ("authorization: Bearer $OPENAI_API_KEY" in words) is locked
    assert ('api_key="none"' in text) is not locked
