from __future__ import annotations

import base64
from typing import Any

import pytest

from antwort.api.errors import ApiError
from antwort.api.items import read
from antwort.engine.attachments import Attacher, check_files, file_type, image_type
from antwort.engine.context import Context
from antwort.engine.ports import ChosenModel
from antwort.engine.stores import FileRecord, Owner
from antwort.models import Scripted, parse_script
from antwort.storage import open_store

pytestmark = pytest.mark.anyio

US, THEM = Owner("us", "key"), Owner("them", "key")
PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
PDF = b"%PDF-1.7\n\xff\xfe"
FILES = {"image.png": PNG, "notes.txt": "grüße".encode(), "run.js": b"let x = 1", "paper.pdf": PDF, "a.bin": b"\0\1"}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def store(tmp_path):
    store = await open_store(f"sqlite:///{tmp_path}/antwort.db", tmp_path / "blobs")
    for name, content in FILES.items():
        await upload(store, US, f"file-{name}", name, content)
    yield store
    await store.aclose()


async def upload(store, owner, identifier, name, content):
    async def chunks():
        yield content

    record = FileRecord(id=identifier, bytes=0, created_at=1, filename=name, purpose="user_data")
    await store.create_file(owner, record, chunks())


def data_url(kind, content):
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def user(*parts):
    return read({"type": "message", "role": "user", "content": list(parts)})


def image(**fields) -> dict[str, Any]:
    return {"type": "input_image", **fields}


def file(**fields) -> dict[str, Any]:
    return {"type": "input_file", **fields}


def attacher(store, owner=US, *, reads_files=False, reads_images=True, most=1_000_000, **options):
    model = ChosenModel(
        "m", Scripted(parse_script("answers: []")), "m", reads_files, reads_images, reads_file_urls=reads_files
    )
    return Attacher(owner, store, model, most, **options)


async def shown(store, *given, before=(), **options):
    history = await attacher(store, **options).history(Context(list(before), list(given)))
    return [item.raw for item in history]


async def refused(store, *given, **options) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await shown(store, *given, **options)
    return caught.value


async def test_an_image_is_resolved_to_a_data_url(store):
    [item] = await shown(store, user(image(file_id="file-image.png", detail="low")))

    [part] = item["content"]
    assert part == {
        "type": "input_image",
        "file_id": "file-image.png",
        "detail": "low",
        "image_url": data_url("image/png", PNG),
    }


@pytest.mark.parametrize(
    "name, kind", [("notes.txt", "text/plain"), ("run.js", "text/"), ("paper.pdf", "application/pdf")]
)
async def test_a_file_is_resolved_to_a_data_url_with_its_name(store, name, kind):
    [item] = await shown(store, user(file(file_id=f"file-{name}")), reads_files=True)

    [part] = item["content"]
    assert part["filename"] == name
    assert part["file_data"].startswith(f"data:{kind}")
    assert base64.b64decode(part["file_data"].partition(",")[2]) == FILES[name]


async def test_attachments_of_call_outputs_are_resolved(store):
    parts = [{"type": "input_text", "text": "see"}, image(file_id="file-image.png"), file(file_id="file-notes.txt")]
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": parts}
    custom = {"type": "custom_tool_call_output", "call_id": "c", "output": parts}
    history = await shown(store, read(call), read(output), read(custom))

    for item in history[1:]:
        assert item["output"][0] == parts[0]
        assert item["output"][1]["image_url"] == data_url("image/png", PNG)
        assert item["output"][2]["filename"] == "notes.txt"


async def test_an_item_without_attachments_is_unchanged(store):
    items = [
        user({"type": "input_text", "text": "x"}),
        read({"role": "user", "content": "plain"}),
        read({"type": "made_up", "content": [image(file_id="file-none")]}),
    ]
    history = await attacher(store).history(Context([], items))

    assert all(after is item for after, item in zip(history, items, strict=True))


@pytest.mark.parametrize("kind", [image, file])
@pytest.mark.parametrize("owner, file_id", [(US, "file-none"), (THEM, "file-image.png"), (US, ""), (US, "../etc")])
async def test_a_missing_file_is_an_error_with_its_param(store, kind, owner, file_id):
    error = await refused(
        store, user(), user({"type": "input_text", "text": "x"}, kind(file_id=file_id)), owner=owner, reads_files=True
    )

    assert (error.status, error.param) == (404, "input[1].content[1].file_id")
    with pytest.raises(ApiError) as caught:
        await check_files([user(kind(file_id=file_id))], owner, store, "items")
    assert (caught.value.status, caught.value.param) == (404, "items[0].content[0].file_id")


@pytest.mark.parametrize(
    "part, code, param",
    [
        (image(), "missing_required_parameter", "image_url"),
        (image(image_url="file:///etc/passwd"), "invalid_value", "image_url"),
        (image(file_id="file-notes.txt"), "unsupported_file", "file_id"),
        (file(), "missing_required_parameter", "file_id"),
        (file(file_id="file-paper.pdf"), "unsupported_file", "file_id"),
        (file(file_id="file-a.bin"), "unsupported_file", "file_id"),
        (file(file_data=data_url("application/pdf", PDF)), "unsupported_file", "file_data"),
        (file(file_data=data_url("text/plain", PDF), filename="x.txt"), "unsupported_file", "file_data"),
        (file(file_data="data:text/plain;base64,%%%"), "invalid_value", "file_data"),
        (file(file_data="not base64"), "invalid_value", "file_data"),
        (file(file_url="https://x.example/a.pdf"), "unsupported_value", "file_url"),
    ],
)
async def test_a_file_that_the_model_cannot_read_is_an_error(store, part, code, param):
    error = await refused(store, user(part))

    assert (error.status, error.code, error.param) == (400, code, f"input[0].content[0].{param}")


async def test_a_model_that_reads_files_gets_any_type(store):
    parts = [
        file(file_data=data_url("application/pdf", PDF)),
        file(file_data=base64.b64encode(PDF).decode(), filename="x.pdf"),
        file(file_url="https://x.example/a.pdf"),
        file(file_data="data:,hello"),
    ]
    [item] = await shown(store, user(*parts), reads_files=True)

    assert [part.get("file_data") for part in item["content"]] == [
        data_url("application/pdf", PDF),
        data_url("application/pdf", PDF),
        None,
        data_url("text/plain", b"hello"),
    ]


async def test_a_missing_file_of_an_earlier_request_is_replaced_by_text(store):
    await store.delete_file(US, "file-image.png")
    gone = user(image(file_id="file-image.png"), file(file_id="file-gone", filename="a.txt"), image(image_url="data:x"))
    history = await shown(store, user({"type": "input_text", "text": "and now?"}), before=[gone])

    assert [part.get("text") for part in history[0]["content"]] == [
        "[an image that cannot be shown any more]",
        "[attached file: a.txt, which cannot be shown any more]",
        None,
    ]


async def test_the_size_limit_counts_each_file_once(store):
    twice = user(image(file_id="file-image.png"), image(file_id="file-image.png"))

    assert len(await shown(store, twice, most=len(PNG))) == 1
    error = await refused(store, twice, user(file(file_id="file-notes.txt")), most=len(PNG))
    assert (error.status, error.code, error.param) == (400, "file_too_large", "input[1].content[0].file_id")


BLIND = {"reads_images": False, "tools_read_files": True, "history_param": "conversation"}


@pytest.mark.parametrize(
    "part", [image(image_url="https://x.example/a.png"), image(), image(image_url="data:image/png;base64,eA==")]
)
async def test_an_image_that_the_model_cannot_read_is_an_error_also_in_the_history(store, part):
    given = await refused(store, user(), user(part), reads_images=False)
    history = await refused(store, before=[user(part)], reads_images=False, history_param="conversation")

    assert (given.status, given.code, given.param) == (400, "unsupported_value", "input[1].content[0]")
    assert (history.status, history.code, history.param) == (400, "unsupported_value", "conversation")


async def test_an_image_that_only_a_tool_reads_is_named(store):
    parts = [image(file_id="file-image.png"), image(image_url=data_url("image/jpeg", PNG))]
    for options in ({"before": ()}, {"before": [user(*parts)]}):
        [*_, item] = await shown(store, *([] if options["before"] else [user(*parts)]), **options, **BLIND)
        assert [part["text"] for part in item["content"]] == [
            "[attached image: image.png, for your tools to read]",
            "[attached image: image.jpg, for your tools to read]",
        ]
    [gone] = await shown(store, before=[user(image(file_id="file-gone"))], **BLIND)
    assert gone["content"][0]["text"] == "[an image that cannot be shown any more]"


@pytest.mark.parametrize(
    "part, status, param",
    [
        (image(file_id="file-gone"), 404, ".file_id"),
        (image(image_url="data:image/png;base64,%%%"), 400, ".image_url"),
        (image(image_url="https://x.example/a.png"), 400, ""),
    ],
)
async def test_an_image_that_no_tool_can_read_is_an_error(store, part, status, param):
    error = await refused(store, user(part), **BLIND)

    assert (error.status, error.param) == (status, f"input[0].content[0]{param}")


def test_the_media_type_follows_the_content():
    assert [image_type(start + bytes(20)) for start in (PNG, b"\xff\xd8\xff", b"GIF89a", b"RIFF0000WEBP", b"BM")] == [
        "image/png",
        "image/jpeg",
        "image/gif",
        "image/webp",
        None,
    ]
    assert file_type("a.json", b"{}") == "application/json"
    assert file_type("a.pdf", b"just text") == "text/plain"
    assert file_type("a.txt", b"\xff\xfe\0") == "application/octet-stream"
    assert file_type("nothing", PNG) == "image/png"
    assert file_type("a.zip", b"PK\3\4\xff") == "application/zip"
