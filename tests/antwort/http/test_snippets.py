from __future__ import annotations

import ast
import json
import re
import shlex

import pytest

from antwort.http.snippets import snippets


@pytest.mark.parametrize("requires_key", [True, False])
@pytest.mark.parametrize("has_code_interpreter", [True, False])
def test_the_curl_command_and_the_program_send_the_same_request(requires_key, has_code_interpreter):
    text = snippets("http://127.0.0.1:8080/v1", requires_key=requires_key, has_code_interpreter=has_code_interpreter)
    found = re.fullmatch(r"In a shell:\n\n(.*)\n\nIn Python:\n\n(.*)", text, re.DOTALL)
    assert found is not None
    words = shlex.split(found[1].replace("\\\n", ""))
    body = json.loads(words[-1])
    call = next(
        node
        for node in ast.walk(ast.parse(found[2]))
        if isinstance(node, ast.Call) and "create" in ast.unparse(node.func)
    )
    arguments = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}

    assert words[:3] == ["curl", "-s", "http://127.0.0.1:8080/v1/responses"]
    assert body == arguments
    assert ("tools" in body) is has_code_interpreter
    assert ("authorization: Bearer $OPENAI_API_KEY" in words) is requires_key
    assert ('api_key="none"' in text) is not requires_key
