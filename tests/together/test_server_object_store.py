"""Contents of files in an object store and in directories: server process, SDK, and a server that speaks S3."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import openai
import pytest
from fixtures_container_server import read
from fixtures_object_store import (
    ACCESS_KEY,
    CREDENTIALS,
    SECRET_KEY,
    S3Server,
    answering,
    running_s3,
    s3_server,  # noqa: F401 - a fixture
)
from fixtures_postgres import postgres_server, schema_url  # noqa: F401 - a fixture
from fixtures_server import Server, run_server
from waiting import wait_until

from antwort.config import ObjectStoreSettings
from antwort.storage.factory import open_blobs

pytestmark = pytest.mark.long

MIB = 1024 * 1024
CONTENT = Random(1).randbytes(20 * MIB + 7)  # noqa: S311 - not cryptographic
MARK = "files/antwort-store"


def settings(endpoint: str, bucket: str, **more: object) -> dict:
    store = {"blobs": f"s3://{bucket}/files", "object_store": {"endpoint": endpoint}}
    return {"storage": {"sweep_interval": 0.2, **store, **more}}


@pytest.fixture
def bucket(s3_server):  # noqa: F811 - a fixture
    return s3_server.bucket()


@pytest.fixture
def server(s3_server, bucket, tmp_path) -> Iterator[Server]:  # noqa: F811 - a fixture
    config = settings(s3_server.url, bucket, orphan_age=4.0)
    with run_server(tmp_path, config, environment=CREDENTIALS) as running:
        yield running


def upload_body(content: bytes) -> bytes:
    head = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
    file = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.bin"\r\n\r\n'
    return head + file + content + b"\r\n--b--\r\n"


def begin_upload(server: Server, sent: int) -> socket.socket:
    """Send the beginning of an upload, and leave the connection open."""
    host, port = server.url.removeprefix("http://").split(":")
    body = upload_body(CONTENT)
    head = (
        f"POST /v1/files HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(body)}\r\n"
        "content-type: multipart/form-data; boundary=b\r\n\r\n"
    )
    connection = socket.create_connection((host, int(port)))
    connection.sendall(head.encode() + body[:sent])
    return connection


def test_a_large_file_is_uploaded_downloaded_and_deleted(server, s3_server, bucket):  # noqa: F811 - a fixture
    body = upload_body(CONTENT)
    pieces = (body[start : start + 70_000] for start in range(0, len(body), 70_000))
    with server.http() as http:
        form = {"content-type": "multipart/form-data; boundary=b"}
        created = http.post("/v1/files", content=pieces, headers=form).json()
        objects = s3_server.objects(bucket)
        with http.stream("GET", f"/v1/files/{created['id']}/content") as download:
            found = hashlib.sha256(b"".join(download.iter_bytes())).digest()
        empty = http.post("/v1/files", content=upload_body(b""), headers=form).json()
        assert http.get(f"/v1/files/{empty['id']}/content").content == b""
        for file in (created, empty):
            assert http.delete(f"/v1/files/{file['id']}").json()["deleted"] is True
        assert http.get(f"/v1/files/{created['id']}/content").status_code == 404

    assert created["bytes"] == len(CONTENT)
    assert found == hashlib.sha256(CONTENT).digest()
    assert sum(objects.values()) - objects[MARK] == len(CONTENT)
    wait_until(lambda: set(s3_server.objects(bucket)) == {MARK})
    assert f"files in s3://{bucket}/files" in server.banner
    assert not {path.name for path in (server.directory / ".antwort").iterdir()} & {"blobs", "files"}


def test_memory_is_bounded_by_the_parts_and_not_by_the_file(server):
    client = server.client()
    client.files.create(file=("warm.bin", CONTENT), purpose="user_data")
    before = server.memory_bytes()
    file = client.files.create(file=("a.bin", CONTENT * 5), purpose="user_data")
    with client.files.with_streaming_response.content(file.id) as download:
        size = sum(len(chunk) for chunk in download.iter_bytes())

    assert size == len(CONTENT) * 5
    assert server.memory_bytes() - before < 60 * MIB


def test_an_expired_file_is_deleted_with_its_objects(server, s3_server, bucket):  # noqa: F811 - a fixture
    client = server.client()
    expires = {"anchor": "created_at", "seconds": 3600}
    file = client.files.create(file=("a.bin", b"content"), purpose="user_data", expires_after=expires)
    assert len(s3_server.objects(bucket)) == 2
    expire_files(server)

    wait_until(lambda: set(s3_server.objects(bucket)) == {MARK})
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)


def expire_files(server: Server) -> None:
    """Let the time of all files be over: the API has no shorter one than an hour."""
    with closing(sqlite3.connect(server.directory / ".antwort" / "antwort.db", timeout=30)) as database:
        database.execute("UPDATE files SET expires_at = 1")
        database.commit()


@pytest.mark.parametrize("is_aborted", [False, True])
def test_an_upload_that_ends_early_leaves_no_object(server, s3_server, bucket, is_aborted):  # noqa: F811 - a fixture
    """Killed in the middle, or left by its client: an object of the first 4 MiB, but no record."""
    kept = server.client().files.create(file=("a.bin", CONTENT[: 5 * MIB]), purpose="user_data")
    before = set(s3_server.objects(bucket))
    connection = begin_upload(server, 9 * MIB)
    wait_until(lambda: set(s3_server.objects(bucket)) > before)
    if is_aborted:
        connection.close()
    else:
        server.kill()
        connection.close()
        assert set(s3_server.objects(bucket)) > before
        server.start()

    wait_until(lambda: set(s3_server.objects(bucket)) == before)
    assert server.client().files.content(kept.id).read() == CONTENT[: 5 * MIB]
    assert [file.id for file in server.client().files.list()] == [kept.id]


@pytest.mark.parametrize("is_postgres", [False, True])
def test_an_upload_that_was_killed_leaves_nothing_in_a_directory(tmp_path, postgres_server, is_postgres):  # noqa: F811 - a fixture
    storage: dict = {"sweep_interval": 0.2, "orphan_age": 2.0}
    if is_postgres:
        storage["url"] = schema_url(postgres_server, tmp_path)
    blobs = tmp_path / ".antwort" / "blobs"

    def names() -> set[str]:
        return {path.name for path in blobs.iterdir()} - {"antwort-store"}

    with run_server(tmp_path, {"storage": storage}) as server:
        kept = server.client().files.create(file=("a.bin", b"kept"), purpose="user_data")
        before = names()
        connection = begin_upload(server, 9 * MIB)
        wait_until(lambda: names() > before)
        server.kill()
        connection.close()
        assert names() > before
        server.start()
        wait_until(lambda: names() == before)
        assert server.client().files.content(kept.id).read() == b"kept"


def test_an_upload_in_progress_survives_the_sweeps_of_another_process(s3_server, bucket, server, tmp_path):  # noqa: F811 - a fixture
    """The other process shares the database through PostgreSQL in production; here it only sees the same objects."""
    connection = begin_upload(server, 9 * MIB)
    wait_until(lambda: len(s3_server.objects(bucket)) > 1)
    with pytest.MonkeyPatch.context() as patched:
        for name, value in CREDENTIALS.items():
            patched.setenv(name, value)
        other = open_blobs(f"s3://{bucket}/files", ObjectStoreSettings(endpoint=s3_server.url), 3600.0)
        assert not isinstance(other, Path)

        assert asyncio.run(other.unowned(1000)) == []
    connection.sendall(upload_body(CONTENT)[9 * MIB :])
    assert b"200 OK" in connection.recv(1000)
    connection.close()


# ── failures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_refused(server: Server, file_id: str) -> None:
    """Requests that need contents are a 503 with `retry-after`; all others work."""
    with server.http() as http:
        form = {"content-type": "multipart/form-data; boundary=b"}
        for answer in (
            http.post("/v1/files", content=upload_body(b"x"), headers=form),
            http.get(f"/v1/files/{file_id}/content"),
        ):
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) >= 1
            assert "file contents" in answer.json()["error"]["message"]
        assert http.get("/readyz").status_code == 200
        assert http.get(f"/v1/files/{file_id}").status_code == 200
        assert http.post("/v1/responses", json={"model": "scripted", "input": "x"}).status_code == 200


def test_an_object_store_that_is_away_or_lacks_the_bucket_is_a_503_and_the_server_recovers(tmp_path):
    with running_s3() as s3:
        bucket = s3.bucket()
        with run_server(tmp_path, settings(s3.url, bucket), environment=CREDENTIALS) as server:
            file = server.client().files.create(file=("a.bin", b"content"), purpose="user_data")
            s3.stop()
            check_refused(server, file.id)
            s3.start()  # without its objects

            def is_refused_for_the_bucket():
                check_refused(server, file.id)
                return f"s3://{bucket}/files failed: the bucket does not exist" in server.read_log()

            wait_until(is_refused_for_the_bucket)
            s3.bucket(bucket)
            again = server.client().files.create(file=("b.bin", b"again"), purpose="user_data")
            assert server.client().files.content(again.id).read() == b"again"
            log = server.read_log()
    assert f"s3://{bucket}/files failed: the object store does not answer" in log
    check_no_secrets(server)


@pytest.mark.long
def test_an_object_store_that_is_frozen_is_a_503_and_the_server_recovers(tmp_path):
    with running_s3() as s3, run_server(tmp_path, settings(s3.url, s3.bucket()), environment=CREDENTIALS) as server:
        client = server.client().with_options(timeout=120)
        file = client.files.create(file=("a.bin", b"content"), purpose="user_data")
        with s3.frozen(), pytest.raises(openai.InternalServerError, match="file contents"):
            client.files.create(file=("b.bin", b"content"), purpose="user_data")
        assert client.files.content(file.id).read() == b"content"


def check_no_secrets(server: Server) -> None:
    shown = server.banner + server.read_log()
    assert SECRET_KEY not in shown
    assert ACCESS_KEY not in shown


def test_a_download_whose_file_is_deleted_is_complete_or_cut_off(server):
    """Never shorter than announced, and never with a wrong content."""
    client = server.client()
    file = client.files.create(file=("a.bin", CONTENT), purpose="user_data")
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"GET /v1/files/{file.id}/content HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
        received = connection.recv(1000)
        client.files.delete(file.id)
        connection.settimeout(30)
        while b"\r\n\r\n" not in received or len(received) < len(CONTENT):
            data = connection.recv(MIB)
            if not data:  # cut off: the client notices by the content-length
                break
            received += data
    head, _, content = received.partition(b"\r\n\r\n")
    assert f"content-length: {len(CONTENT)}".encode() in head.lower()
    assert CONTENT.startswith(content)


@pytest.mark.parametrize(
    "status, code, message",
    [
        (403, "InvalidAccessKeyId", "rejects the credentials, or they lack a permission (InvalidAccessKeyId)"),
        (404, "NoSuchBucket", "the bucket does not exist. Fix that, or change `storage.blobs`."),
        (503, "SlowDown", "answered 503 (SlowDown). Fix that, or change `storage`, and start again."),
    ],
)
def test_an_object_store_that_refuses_is_a_start_up_error_that_says_what_to_do(tmp_path, status, code, message):
    with (
        answering(status, code) as endpoint,
        pytest.raises(AssertionError, match="did not start"),
        run_server(tmp_path, settings(endpoint, "bucket"), environment=CREDENTIALS),
    ):
        pass
    log = (tmp_path / "log").read_text()
    assert "s3://bucket/files failed: " in log
    assert message in log
    assert ACCESS_KEY not in log
    assert SECRET_KEY not in log


def test_a_second_database_does_not_take_the_objects_of_the_first(s3_server, bucket, tmp_path):  # noqa: F811 - a fixture
    config = settings(s3_server.url, bucket)
    with run_server(tmp_path / "1", config, environment=CREDENTIALS):
        pass
    with (
        pytest.raises(AssertionError, match="did not start"),
        run_server(tmp_path / "2", config, environment=CREDENTIALS),
    ):
        pass
    assert (
        "holds the files of another database. Set `storage.blobs` to another prefix"
        in (tmp_path / "2" / "log").read_text()
    )


def test_files_of_an_object_store_are_copied_into_containers(s3_server: S3Server, bucket, tmp_path):  # noqa: F811 - a fixture
    config = {**settings(s3_server.url, bucket), "providers": {"code_interpreter": {"enabled": True}}}
    with run_server(tmp_path, config, environment=CREDENTIALS) as server:
        client = server.client()
        file = client.files.create(file=("a.bin", CONTENT[: 5 * MIB]), purpose="user_data")
        container = client.containers.create(name="x", file_ids=[file.id])
        [copied] = client.containers.files.list(container.id)
        assert read(client, container.id, copied.id) == CONTENT[: 5 * MIB]
