from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fixtures_in_process_server import multipart_body, run_in_process_server

from antwort.storage.blobs.directory import OWNER_FILE

pytestmark = pytest.mark.anyio

FORM = {"content-type": "multipart/form-data; boundary=b"}


async def upload(http, *parts):
    return await http.post("/v1/files", content=multipart_body(*parts), headers=FORM)


def stored_blobs(server) -> list[Path]:
    return [path for path in Path(server.services.config.storage.blobs).iterdir() if path.name != OWNER_FILE]


async def test_a_download_has_the_uploaded_content_as_an_attachment(server):
    content = bytes(range(256)) * 5000
    created = await upload(server.http, ("purpose", b"user_data"), ("file", content, "dir/<script>.html"))
    answer = await server.http.get(f"/v1/files/{created.json()['id']}/content")

    assert created.json()["bytes"] == len(content)
    assert answer.content == content
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''dir%2F%3Cscript%3E.html"
    assert answer.headers["content-security-policy"] == "sandbox; default-src 'none'"


@pytest.mark.parametrize("name, stored_name", [("näme.txt", "näme.txt"), ("a\tb\x00c", "abc"), ("x" * 255, "x" * 255)])
async def test_unprintable_characters_are_removed_from_the_filename(server, name, stored_name):
    created = await upload(server.http, ("purpose", b"user_data"), ("file", b"x", name))

    assert created.json()["filename"] == stored_name


@pytest.mark.parametrize(
    "fields, param",
    [
        ([("file", b"x", "a")], "purpose"),
        ([("purpose", b"user_data")], "file"),
        ([("purpose", b"unknown_purpose"), ("file", b"x", "a")], "purpose"),
        ([("purpose", b"user_data"), ("file", b"x", "")], "file"),
        ([("purpose", b"user_data"), ("file", b"x", "\x00")], "file"),
        ([("purpose", b"user_data"), ("file", b"x", "x" * 256)], "file"),
        (
            [("purpose", b"user_data"), ("expires_after[anchor]", b"created_at"), ("file", b"x", "a")],
            "expires_after[seconds]",
        ),
        (
            [("purpose", b"user_data"), ("expires_after[seconds]", b"3600"), ("file", b"x", "a")],
            "expires_after[anchor]",
        ),
    ],
)
async def test_an_invalid_form_names_the_parameter_and_stores_nothing(server, fields, param):
    answer = await upload(server.http, *fields)

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert stored_blobs(server) == []


@pytest.mark.parametrize(
    "seconds, status", [(3599, 400), (3600, 200), (2_592_000, 200), (2_592_001, 400), ("1e4", 400)]
)
async def test_expires_after_is_limited_to_an_hour_and_30_days(server, seconds, status):
    expiry = [("expires_after[anchor]", b"created_at"), ("expires_after[seconds]", str(seconds).encode())]
    answer = await upload(server.http, ("purpose", b"user_data"), *expiry, ("file", b"x", "a"))

    assert answer.status_code == status
    if status == 200:
        assert answer.json()["expires_at"] == answer.json()["created_at"] + seconds


async def test_form_fields_may_follow_the_file(server):
    small = await upload(server.http, ("file", b"small", "a"), ("purpose", b"user_data"))
    large = await upload(server.http, ("file", b"x" * 3_000_000, "b"), ("purpose", b"evals"))
    wrong = await upload(server.http, ("file", b"x" * 3_000_000, "c"), ("purpose", b"nope"))

    assert [small.json()["bytes"], large.json()["bytes"], wrong.status_code] == [5, 3_000_000, 400]
    assert len(stored_blobs(server)) == 2


async def test_files_are_listed_by_purpose_and_in_pages(server):
    for number in range(5):
        purpose = b"evals" if number % 2 else b"user_data"
        await upload(server.http, ("purpose", purpose), ("file", b"x", f"{number}.txt"))
    page = (await server.http.get("/v1/files", params={"limit": 2, "order": "asc"})).json()
    rest = (await server.http.get("/v1/files", params={"after": page["last_id"], "order": "asc"})).json()
    evals = (await server.http.get("/v1/files", params={"purpose": "evals", "order": "asc"})).json()

    assert [file["filename"] for file in page["data"]] == ["0.txt", "1.txt"]
    assert (page["has_more"], rest["has_more"]) == (True, False)
    assert [file["filename"] for file in rest["data"]] == ["2.txt", "3.txt", "4.txt"]
    assert [file["filename"] for file in evals["data"]] == ["1.txt", "3.txt"]


async def test_deleting_a_file_deletes_its_blob(server):
    created = (await upload(server.http, ("purpose", b"user_data"), ("file", b"x", "a"))).json()
    deleted = await server.http.delete(f"/v1/files/{created['id']}")

    assert deleted.json() == {"id": created["id"], "object": "file", "deleted": True}
    assert (await server.http.get(f"/v1/files/{created['id']}/content")).status_code == 404
    assert (await server.http.delete(f"/v1/files/{created['id']}")).status_code == 404
    assert stored_blobs(server) == []


@pytest.mark.parametrize("fields_last", [False, True])
async def test_an_aborted_upload_stores_nothing(server, fields_last):
    parts = [("purpose", b"user_data"), ("file", b"x" * 2_000_000, "a")]
    body = multipart_body(*(reversed(parts) if fields_last else parts))
    _, writer = await asyncio.open_connection("127.0.0.1", server.http.base_url.port)
    head = f"POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    writer.write(head.encode() + b"content-type: multipart/form-data; boundary=b\r\n\r\n" + body[:1_500_000])
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    async with asyncio.timeout(10):
        while b'route="files.create",status="499"' not in server.services.metrics.render()[0]:  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(0.01)

    assert stored_blobs(server) == []
    assert (await server.http.get("/v1/files")).json()["data"] == []


async def test_an_oversized_upload_is_rejected_with_413_and_stores_nothing(tmp_path):
    async with run_in_process_server(tmp_path, {"server": {"max_file": 1000}}) as server:
        exact = await upload(server.http, ("purpose", b"user_data"), ("file", b"x" * 1000, "a"))
        more = await upload(server.http, ("purpose", b"user_data"), ("file", b"x" * 1001, "a"))

        assert (exact.status_code, more.status_code) == (200, 413)
        assert len(stored_blobs(server)) == 1


async def test_a_stalled_download_is_aborted(tmp_path):
    async with run_in_process_server(tmp_path, {"server": {"stall_timeout": 0.2}}) as (_, http):
        created = await upload(http, ("purpose", b"user_data"), ("file", bytes(30_000_000), "a.bin"))
        reader, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port, limit=1024)
        try:
            writer.write(f"GET /v1/files/{created.json()['id']}/content HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            await writer.drain()
            assert b"content-length: 30000000" in (await reader.readuntil(b"\r\n\r\n")).lower()
            async with asyncio.timeout(20):
                while 'route="files.content"' not in (await http.get("/metrics")).text:  # noqa: ASYNC110 - counted when the request ends
                    await asyncio.sleep(0.1)
        finally:
            writer.close()
