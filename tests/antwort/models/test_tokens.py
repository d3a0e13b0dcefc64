from __future__ import annotations

from antwort.api.items import read
from antwort.api.requests import JsonSchemaFormat
from antwort.engine.ports import CallPiece, Finished, FunctionSpec, ModelRequest, TextPiece
from antwort.models.tokens import estimate_request, estimate_usage, generated_text


def request(*raws, **more):
    return ModelRequest(model="m", items=[read(raw) for raw in raws], **more)


def user(content):
    return {"role": "user", "content": content}


def test_instructions_tools_formats_and_items_count():
    plain = estimate_request(request(user("Hi")))

    assert estimate_request(request(user("Hi"), instructions="Be kind to all.")) > plain
    assert estimate_request(request(user("Hi"), tools=[FunctionSpec("f", "Does it.", {"type": "object"})])) > plain
    assert estimate_request(request(user("Hi"), format=JsonSchemaFormat(name="a", schema={"type": "object"}))) > plain
    assert (
        estimate_request(request(user("Hi"), {"type": "function_call_output", "call_id": "a", "output": "x" * 400}))
        > plain + 99
    )
    assert (
        estimate_request(request(user("Hi"), {"type": "brand_new", "deep": {"list": ["x" * 400, 7, None]}}))
        > plain + 99
    )


def test_an_image_counts_the_same_whatever_its_size():
    data = "data:image/png;base64," + "A" * 1_000_000
    image = {"type": "input_image", "image_url": data}
    answer = {"type": "function_call_output", "call_id": "a", "output": [image]}
    code = {
        "type": "code_interpreter_call",
        "id": "c",
        "container_id": "k",
        "code": "",
        "outputs": [{"type": "image", "url": data}],
    }

    for raw in (user([image]), answer, code):
        assert 700 < estimate_request(request(raw)) < 1000
    assert estimate_request(request(user([{**image, "detail": "low"}]))) < 100


def test_encrypted_content_is_not_counted():
    sealed = {"type": "reasoning", "summary": [], "encrypted_content": "A" * 100_000}

    assert estimate_request(request(sealed)) < 20


def test_estimate_usage():
    usage = estimate_usage(request(user("Hi")), 5)

    assert (usage.output_tokens, usage.total_tokens) == (5, usage.input_tokens + 5)
    assert [generated_text(piece) for piece in (TextPiece("a"), CallPiece(0, "f", "c", "{}"), Finished())] == [
        "a",
        "f{}",
        "",
    ]
