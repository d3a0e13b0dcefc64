"""Uploaded files as model input, for each kind of model: server process and SDK."""

from __future__ import annotations

import base64

import openai
import pytest
from fake_upstream import running_upstream
from fixtures_server import run_server

from antwort.testing.model import ModelAnswer

PNG = b"\x89PNG\r\n\x1a\n" + bytes(30)
PDF = b"%PDF-1.7\n\xff\xfe"
HELLO = ModelAnswer(text="I see.")


@pytest.fixture(scope="module")
def upstream():
    with running_upstream() as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory, upstream):
    models = {
        "chat": {"kind": "chat_completions", "base_url": upstream.url, "tokenizer": "estimate"},
        "reader": {"kind": "chat_completions", "base_url": upstream.url, "files": True},
        "upstream": {"kind": "responses", "base_url": upstream.url},
    }
    with run_server(tmp_path_factory.mktemp("server"), {"models": models}) as running:
        yield running


@pytest.fixture
def client(server, upstream):
    upstream.reset()
    upstream.set_replies(upstream.chat(HELLO), path="v1/chat/completions")
    upstream.set_replies(upstream.responses(HELLO), path="v1/responses")
    with server.client() as client:
        yield client


@pytest.fixture
def files(client):
    contents = {"a.png": PNG, "a.txt": "grüße".encode(), "a.pdf": PDF}
    return {
        name: client.files.create(file=(name, content), purpose="user_data").id for name, content in contents.items()
    }


def question(*parts):
    return [{"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, *parts]}]


def data_url(kind, content):
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def test_a_chat_model_receives_images_and_text_files(client, upstream, files):
    parts = [{"type": "input_image", "file_id": files["a.png"]}, {"type": "input_file", "file_id": files["a.txt"]}]
    response = client.responses.create(model="chat", input=question(*parts))

    assert response.output_text == "I see."
    assert upstream.requests[-1].body["messages"][0]["content"] == [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": data_url("image/png", PNG)}},
        {"type": "text", "text": "[attached file: a.txt]\ngrüße\n[end of a.txt]"},
    ]


def test_a_chat_model_with_file_support_receives_files(client, upstream, files):
    client.responses.create(model="reader", input=question({"type": "input_file", "file_id": files["a.pdf"]}))

    [_, sent] = upstream.requests[-1].body["messages"][0]["content"]
    assert sent == {"type": "file", "file": {"filename": "a.pdf", "file_data": data_url("application/pdf", PDF)}}


def test_a_responses_upstream_receives_content_instead_of_file_ids(client, upstream, files):
    parts = [{"type": "input_image", "file_id": files["a.png"]}, {"type": "input_file", "file_id": files["a.pdf"]}]
    client.responses.create(model="upstream", input=question(*parts))

    [_, image, file] = upstream.requests[-1].body["input"][0]["content"]
    assert (image["image_url"], "file_id" in image) == (data_url("image/png", PNG), False)
    assert (file["file_data"], file["filename"], "file_id" in file) == (
        data_url("application/pdf", PDF),
        "a.pdf",
        False,
    )


def test_listed_input_items_keep_the_file_id(client, files):
    part = {"type": "input_image", "file_id": files["a.png"], "detail": "auto"}
    response = client.responses.create(model="chat", input=question(part))
    [item] = client.responses.input_items.list(response.id, include=["message.input_image.image_url"]).data

    assert item.content[1].to_dict() == part


@pytest.mark.parametrize("stream", [False, True])
def test_an_unsupported_file_is_a_400_also_for_a_stream(client, upstream, files, stream):
    with pytest.raises(openai.BadRequestError, match=r"'chat' cannot read 'a\.pdf'") as caught:
        client.responses.create(
            model="chat", input=question({"type": "input_file", "file_id": files["a.pdf"]}), stream=stream
        )

    assert (caught.value.code, caught.value.param) == ("unsupported_file", "input[0].content[1].file_id")
    assert upstream.requests == []


@pytest.mark.parametrize("kind", ["input_image", "input_file"])
def test_a_missing_file_is_a_404_with_its_parameter(client, kind):
    part = {"type": kind, "file_id": "file-none"}
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.create(model="chat", input=question(part))
    assert caught.value.param == "input[0].content[1].file_id"

    with pytest.raises(openai.NotFoundError) as caught:
        client.conversations.create(items=question(part))
    assert caught.value.param == "items[0].content[1].file_id"


def test_a_chain_continues_after_its_file_is_deleted(client, upstream, files):
    first = client.responses.create(model="chat", input=question({"type": "input_file", "file_id": files["a.txt"]}))
    client.files.delete(files["a.txt"])
    second = client.responses.create(model="chat", input="And now?", previous_response_id=first.id)

    assert second.output_text == "I see."
    assert "cannot be shown any more" in upstream.requests[-1].body["messages"][0]["content"]
