"""The real process and the real SDK: uploaded files, shown to models of every kind."""

from __future__ import annotations

import base64

import openai
import pytest
from fake_upstream import upstreaming
from fixtures_server import run_server

from antwort.testing.model import WholeAnswer

PNG = b"\x89PNG\r\n\x1a\n" + bytes(30)
PDF = b"%PDF-1.7\n\xff\xfe"
HELLO = WholeAnswer(text="I see.")


@pytest.fixture(scope="module")
def upstream():
    with upstreaming() as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory, upstream):
    models = {
        "chat": {"kind": "chat_completions", "base_url": upstream.url, "tokenizer": "estimate"},
        "reader": {"kind": "chat_completions", "base_url": upstream.url, "files": True},
        "passed": {"kind": "responses", "base_url": upstream.url},
    }
    with run_server(tmp_path_factory.mktemp("server"), {"models": models}) as running:
        yield running


@pytest.fixture
def client(server, upstream):
    upstream.forget()
    upstream.plays(upstream.chat(HELLO), path="v1/chat/completions")
    upstream.plays(upstream.responses(HELLO), path="v1/responses")
    with server.client() as client:
        yield client


@pytest.fixture
def files(client):
    contents = {"a.png": PNG, "a.txt": "grüße".encode(), "a.pdf": PDF}
    return {
        name: client.files.create(file=(name, content), purpose="user_data").id for name, content in contents.items()
    }


def asking(*parts):
    return [{"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, *parts]}]


def data_url(kind, content):
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def test_a_chat_server_sees_images_and_reads_texts(client, upstream, files):
    parts = [{"type": "input_image", "file_id": files["a.png"]}, {"type": "input_file", "file_id": files["a.txt"]}]
    response = client.responses.create(model="chat", input=asking(*parts))

    assert response.output_text == "I see."
    assert upstream.asked[-1].body["messages"][0]["content"] == [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": data_url("image/png", PNG)}},
        {"type": "text", "text": "[attached file: a.txt]\ngrüße\n[end of a.txt]"},
    ]


def test_a_chat_server_that_takes_files_is_sent_them(client, upstream, files):
    client.responses.create(model="reader", input=asking({"type": "input_file", "file_id": files["a.pdf"]}))

    [_, sent] = upstream.asked[-1].body["messages"][0]["content"]
    assert sent == {"type": "file", "file": {"filename": "a.pdf", "file_data": data_url("application/pdf", PDF)}}


def test_a_server_of_this_kind_is_sent_data_and_no_ids(client, upstream, files):
    parts = [{"type": "input_image", "file_id": files["a.png"]}, {"type": "input_file", "file_id": files["a.pdf"]}]
    client.responses.create(model="passed", input=asking(*parts))

    [_, image, file] = upstream.asked[-1].body["input"][0]["content"]
    assert (image["image_url"], "file_id" in image) == (data_url("image/png", PNG), False)
    assert (file["file_data"], file["filename"], "file_id" in file) == (
        data_url("application/pdf", PDF),
        "a.pdf",
        False,
    )


def test_what_is_listed_is_what_was_sent(client, files):
    part = {"type": "input_image", "file_id": files["a.png"], "detail": "auto"}
    response = client.responses.create(model="chat", input=asking(part))
    [item] = client.responses.input_items.list(response.id, include=["message.input_image.image_url"]).data

    assert item.content[1].to_dict() == part


@pytest.mark.parametrize("stream", [False, True])
def test_a_file_that_the_model_cannot_read_is_a_clear_400_also_for_a_stream(client, upstream, files, stream):
    with pytest.raises(openai.BadRequestError, match=r"'chat' cannot read 'a\.pdf'") as caught:
        client.responses.create(
            model="chat", input=asking({"type": "input_file", "file_id": files["a.pdf"]}), stream=stream
        )

    assert (caught.value.code, caught.value.param) == ("unsupported_file", "input[0].content[1].file_id")
    assert upstream.asked == []


@pytest.mark.parametrize("kind", ["input_image", "input_file"])
def test_a_file_that_is_not_there_is_a_404_that_says_which(client, kind):
    part = {"type": kind, "file_id": "file-none"}
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.create(model="chat", input=asking(part))
    assert caught.value.param == "input[0].content[1].file_id"

    with pytest.raises(openai.NotFoundError) as caught:
        client.conversations.create(items=asking(part))
    assert caught.value.param == "items[0].content[1].file_id"


def test_a_chain_outlives_its_files(client, upstream, files):
    first = client.responses.create(model="chat", input=asking({"type": "input_file", "file_id": files["a.txt"]}))
    client.files.delete(files["a.txt"])
    second = client.responses.create(model="chat", input="And now?", previous_response_id=first.id)

    assert second.output_text == "I see."
    assert "cannot be shown any more" in upstream.asked[-1].body["messages"][0]["content"]
