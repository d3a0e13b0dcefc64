"""URLs of images and files in the input: the real server with `fetch.input_urls`, a local web site, and the SDK."""

from __future__ import annotations

import base64

import openai
import pytest
from fake_upstream import running_upstream
from fake_web_site import PNG, fake_web_site, pdf_document
from fixtures_server import create_key, run_server

from antwort.testing.model import ModelAnswer

HELLO = ModelAnswer(text="I see.")
CODE = {"type": "code_interpreter", "container": {"type": "auto"}}
SCRIPT = {
    "answers": [
        {
            "when": {"turn": 1},
            "reply": [
                {"call": {"name": "code_interpreter", "arguments": {"code": "import os; print(sorted(os.listdir()))"}}}
            ],
        },
        {"reply": [{"text": "<<output>>"}]},
    ]
}
IMAGES = ["message.input_image.image_url"]


@pytest.fixture(scope="module")
def upstream():
    with running_upstream() as running:
        yield running


@pytest.fixture(scope="module")
def site():
    with fake_web_site() as running:
        yield running


def models(upstream) -> dict:
    return {
        "scripted": {"kind": "scripted", "script": "script.yaml"},
        "chat": {"kind": "chat_completions", "base_url": upstream.url, "tokenizer": "estimate"},
        "reader": {"kind": "chat_completions", "base_url": upstream.url, "files": True},
        "blind": {"kind": "chat_completions", "base_url": upstream.url, "images": False},
        "upstream": {"kind": "responses", "base_url": upstream.url},
    }


def fetch(site, **more) -> dict:
    limits = {"timeout": 2, "max_bytes": 100_000, "max_redirects": 2}
    return {"input_urls": True, "allow_networks": ["127.0.0.1/32"], "ports": [site.port], **limits, **more}


@pytest.fixture(scope="module")
def server(tmp_path_factory, upstream, site):
    config = {
        "models": models(upstream),
        "fetch": fetch(site),
        "engine": {"max_attached": 150_000},
        "providers": {"code_interpreter": {"enabled": True}},
    }
    with run_server(tmp_path_factory.mktemp("server"), config, script=SCRIPT) as running:
        yield running


@pytest.fixture
def client(server, upstream):
    reset(upstream)
    with server.client() as client:
        yield client


def reset(upstream) -> None:
    upstream.reset()
    upstream.set_replies(upstream.chat(HELLO), path="v1/chat/completions")
    upstream.set_replies(upstream.responses(HELLO), path="v1/responses")


def image(url: str, **more) -> dict:
    return {"type": "input_image", "image_url": url, **more}


def file(url: str, **more) -> dict:
    return {"type": "input_file", "file_url": url, **more}


def ask(client, *parts: dict, model: str = "chat", **more):
    question = [{"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, *parts]}]
    return client.responses.create(**{"model": model, "input": question, **more})


def sent(upstream, at: int = 0) -> list[dict]:
    """The content of a message that the chat server received."""
    return upstream.requests[-1].body["messages"][at]["content"]


def data_url(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def refused(client, *parts: dict, **more) -> openai.BadRequestError:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, *parts, **more)
    return caught.value


# ── what models and tools get ────────────────────────────────────────────────────────────────────────────────────────


def test_a_chat_model_gets_images_and_text_files_as_data(client, upstream, site):
    url = f"{site.url}/redirect?to=/image%3Ftype=application/octet-stream"
    before = len(site.paths)
    ask(client, image(url, detail="low"), image(url), file(f"{site.url}/notes.txt"))

    seen = {"type": "image_url", "image_url": {"url": data_url("image/png", PNG)}}
    assert sent(upstream) == [
        {"type": "text", "text": "What is it?"},
        {**seen, "image_url": {**seen["image_url"], "detail": "low"}},
        seen,
        {"type": "text", "text": "[attached file: notes.txt]\nPlain tea costs 2 €.\n[end of notes.txt]"},
    ]
    assert len(site.paths) == before + 3, "a URL is fetched once"
    path, headers = next(one for one in site.requests[before:] if one[0].startswith("/redirect"))  # fetched at once
    assert "authorization" not in headers
    assert (path, headers["accept"]) == (
        "/redirect?to=/image%3Ftype=application/octet-stream",
        "image/png,image/jpeg,image/gif,image/webp",
    )


def test_a_model_that_reads_files_gets_them_with_a_name(client, upstream, site):
    content = {"filename": "pdf.pdf", "file_data": data_url("application/pdf", pdf_document_of_the_site())}
    ask(client, file(f"{site.url}/pdf"), model="reader")
    assert sent(upstream)[1] == {"type": "file", "file": content}

    ask(client, file(f"{site.url}/pdf", filename="prices.pdf"), image(f"{site.url}/image"), model="upstream")
    [_, document, picture] = upstream.requests[-1].body["input"][0]["content"]
    assert document == {"type": "input_file", **content, "filename": "prices.pdf"}
    assert picture == {"type": "input_image", "image_url": data_url("image/png", PNG)}


def pdf_document_of_the_site() -> bytes:
    return pdf_document("Oolong costs 12 euros.", title="Price list")


def test_the_code_interpreter_gets_files_and_images(client, upstream, site):
    parts = [file(f"{site.url}/notes.txt"), file(f"{site.url}/pdf"), image(f"{site.url}/image")]
    assert ask(client, *parts, model="scripted", tools=[CODE]).output_text.strip() == "['notes.txt', 'pdf.pdf']"

    ask(client, *parts, model="blind", tools=[CODE])
    assert sent(upstream) == (
        "What is it?\n[attached file: notes.txt]\nPlain tea costs 2 €.\n[end of notes.txt]\n"
        "[attached file: pdf.pdf, for your tools to read]\n[attached image: image.png, for your tools to read]"
    )


def test_images_in_outputs_of_functions_are_fetched(client, upstream, site):
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": [image(f"{site.url}/image")]}
    ask(client, input=[{"role": "user", "content": "Look."}, call, output])

    assert sent(upstream, -1)[1]["image_url"] == {"url": data_url("image/png", PNG)}


def test_a_screenshot_is_fetched(client, upstream, site):
    call = {"type": "computer_call", "call_id": "c1", "id": "cu_1", "actions": [{"type": "screenshot"}]}
    call |= {"pending_safety_checks": [], "status": "completed"}
    screenshot = {"type": "computer_screenshot", "image_url": f"{site.url}/image"}
    output = {"type": "computer_call_output", "call_id": "c1", "output": screenshot}
    history = [{"role": "user", "content": "Look."}, call, output]
    first = ask(client, input=history)

    assert sent(upstream, -1)[1]["image_url"] == {"url": data_url("image/png", PNG)}
    include = ["computer_call_output.output.image_url"]
    [item] = [
        one for one in client.responses.input_items.list(first.id, include=include).data if one.type == output["type"]
    ]
    assert item.to_dict()["output"] == {
        **screenshot,
        "image_url": data_url("image/png", PNG),
        "antwort:source_url": screenshot["image_url"],
    }
    output["output"] = {**screenshot, "image_url": f"{site.url}/nothing"}
    assert refused(client, input=history).param == "input[2].output.image_url"


# ── what is stored ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_stored_response_keeps_the_content_and_a_chained_one_fetches_nothing(client, upstream, site):
    url = f"{site.url}/image"
    first = ask(client, image(url), file(f"{site.url}/notes.txt"))
    fetched = len(site.paths)
    client.responses.create(model="chat", input="And now?", previous_response_id=first.id)

    assert sent(upstream)[1]["image_url"] == {"url": data_url("image/png", PNG)}
    assert "Plain tea" in sent(upstream)[2]["text"]
    assert len(site.paths) == fetched
    [item] = client.responses.input_items.list(first.id, include=IMAGES).data
    [_, picture, text] = [part.to_dict() for part in item.content]
    assert picture == {"type": "input_image", "image_url": data_url("image/png", PNG), "antwort:source_url": url}
    assert (text["filename"], text["antwort:source_url"]) == ("notes.txt", f"{site.url}/notes.txt")
    [item] = client.responses.input_items.list(first.id).data
    assert item.content[1].image_url is None


def test_a_response_that_is_not_stored_stores_nothing(server, client, site):
    secret = "never-stored-7c1f"
    ask(client, file(f"{site.url}/typed?type=text/plain&body={secret}-body"), store=False)

    database = (server.directory / ".antwort").glob("antwort.db*")
    assert all(secret.encode() not in path.read_bytes() for path in database)


def test_an_item_of_a_conversation_is_fetched_when_it_is_read(client, upstream, site):
    parts = [image(f"{site.url}/image"), file(f"{site.url}/nothing"), {"type": "input_text", "text": "See."}]
    conversation = client.conversations.create(items=[{"type": "message", "role": "user", "content": parts}])
    client.responses.create(model="chat", input="And?", conversation=conversation.id)

    assert sent(upstream)[0]["image_url"] == {"url": data_url("image/png", PNG)}
    assert "status 404" in sent(upstream)[1]["text"]


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "path, reason",
    [
        ("/nothing", "answered with status 404"),
        ("/tea", "content type is text/html"),
        ("/typed?type=image/png&body=<svg>", "not a supported image"),
        ("/typed?type=image/svg%2Bxml&body=<svg>", "not a supported image"),
        ("/typed?type=image/png", "its content is empty"),
        ("/bomb?type=image/png", "exceeds 100000 bytes"),
        ("/big", "content type"),
        ("/endless?type=image/png", "exceeds 100000 bytes"),
        ("/slow?type=image/png", "did not arrive within 2 s"),
        ("/not-gzip", "content type"),
        ("/loop", "redirects more than 2 times"),
        ("/redirect?to=http://10.0.0.1:PORT/", "10.0.0.1 is not on the public internet"),
        ("/redirect?to=http://[::1]:PORT/", "::1 is not on the public internet"),
        ("/redirect?to=http://127.0.0.1:22/", "port 22 is not allowed"),
        ("/redirect?to=file:///etc/passwd", "must start with http"),
    ],
)
def test_an_image_that_cannot_be_fetched_is_a_400_that_names_its_field(client, upstream, site, path, reason):
    error = refused(client, image(f"{site.url}{path.replace('PORT', str(site.port))}"))

    assert error.param == "input[0].content[1].image_url"
    assert reason in error.message
    assert upstream.requests == []


@pytest.mark.parametrize(
    "path, code, reason",
    [
        ("/bomb", "invalid_value", "exceeds 100000 bytes"),
        ("/slow", "invalid_value", "did not arrive within 2 s"),
        ("/cut-gzip", "invalid_value", "compressed body is incomplete"),
        ("/typed?type=text/plain", "invalid_value", "its content is empty"),
        ("/pdf", "unsupported_file", "cannot read 'pdf.pdf' (application/pdf)"),
    ],
)
def test_a_file_that_cannot_be_fetched_or_read_is_a_400_that_names_its_field(client, site, path, code, reason):
    error = refused(client, file(f"{site.url}{path}"))

    assert (error.code, error.param) == (code, "input[0].content[1].file_url")
    assert reason in error.message


def test_the_size_and_the_number_of_the_urls_of_a_request_are_limited(client, site):
    big = [file(f"{site.url}/typed?type=text/plain&size=50000&n={n}") for n in range(4)]
    error = refused(client, *big)
    assert (error.code, str(error.param)[:16]) == ("file_too_large", "input[0].content")

    error = refused(client, *(image(f"{site.url}/image?n={n}") for n in range(65)))
    assert (error.code, error.param) == ("invalid_value", "input[0].content[65].image_url")


def test_a_model_that_reads_no_images_makes_no_fetch(client, site):
    before = len(site.paths)
    error = refused(client, image(f"{site.url}/image"), model="blind")

    assert (error.code, error.param) == ("unsupported_value", "input[0].content[1]")
    assert len(site.paths) == before


def test_private_addresses_are_refused_and_off_is_the_default(tmp_path, upstream, site):
    reset(upstream)
    key = create_key(tmp_path / "on", "one")
    settings = {"models": models(upstream), "fetch": fetch(site, allow_networks=[]), "auth": {"keys_file": "keys.json"}}
    with run_server(tmp_path / "on", settings) as server, server.client(key) as client:
        for host in ("127.0.0.1", "localhost", "[::1]", "0x7f000001", "169.254.169.254"):
            error = refused(client, image(f"http://{host}:{site.port}/image"))
            assert "public internet" in error.message or "unusual form" in error.message
    before = len(site.paths)
    with run_server(tmp_path / "off", {"models": models(upstream)}) as server, server.client() as client:
        url = f"{site.url}/image"
        for model in ("chat", "reader"):
            error = refused(client, file(f"{site.url}/pdf"), model=model)
            assert (error.code, error.param) == ("unsupported_value", "input[0].content[1].file_url")
            assert "fetch.input_urls: true" in error.message
        ask(client, image(url))
        assert sent(upstream)[1]["image_url"] == {"url": url}, "the model's server fetches it"
        ask(client, image(url), file(f"{site.url}/pdf"), model="upstream")
        assert upstream.requests[-1].body["input"][0]["content"][1:] == [image(url), file(f"{site.url}/pdf")]
    assert len(site.paths) == before
