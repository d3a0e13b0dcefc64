"""Containers API, with the real SDK and every sandbox backend."""

from __future__ import annotations

import io
import json
import os
import time

import openai
import pytest
from fixtures_container_server import execute, files, read
from fixtures_server import run_server

# ── lifecycle ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_container_has_the_requested_properties(client):
    now = int(time.time())
    plain = client.containers.create(name="grüße")
    requested = client.containers.create(
        name="x", memory_limit="4g", expires_after={"anchor": "last_active_at", "minutes": 3}
    )

    assert set(json.loads(plain.to_json())) == {
        *("id", "object", "created_at", "status", "expires_after", "last_active_at", "memory_limit", "name"),
        "network_policy",
    }
    assert plain.id.startswith("cntr_")
    assert len(plain.id) == len("cntr_") + 32
    assert (plain.object, plain.status, plain.name, plain.memory_limit) == ("container", "running", "grüße", "1g")
    assert (plain.expires_after.anchor, plain.expires_after.minutes) == ("last_active_at", 20)
    assert plain.network_policy.type == "disabled"
    assert now <= plain.created_at <= plain.last_active_at <= now + 5
    assert (requested.memory_limit, requested.expires_after.minutes) == ("4g", 3)
    assert client.containers.retrieve(plain.id).id == plain.id


def test_containers_are_listed_page_by_page_and_by_name(client):
    made = [client.containers.create(name=name).id for name in "abcab"]

    assert [one.id for one in client.containers.list(limit=2)] == made[::-1]  # the SDK asks for page after page
    assert [one.id for one in client.containers.list(order="asc", limit=2)] == made
    assert [one.id for one in client.containers.list(order="asc", after=made[2])] == made[3:]
    page = client.containers.list(limit=2)
    assert page.has_more
    assert [one.id for one in page.data] == [made[4], made[3]]
    assert [one.id for one in client.containers.list(name="a")] == [made[3], made[0]]
    assert client.containers.list(name="none").data == []


def test_a_page_has_first_and_last_id(env, client):
    made = [client.containers.create(name="x").id for _ in range(3)]
    with env.http() as http:
        page = http.get("/v1/containers?limit=2").json()

    assert set(page) == {"object", "data", "first_id", "last_id", "has_more"}
    assert (page["object"], page["first_id"], page["last_id"], page["has_more"]) == ("list", made[2], made[1], True)


def test_a_deleted_container_is_gone_with_its_files(env, client, container):
    file = client.containers.files.create(container.id, file=("a.txt", b"abc"))
    with env.http() as http:
        answer = http.delete(f"/v1/containers/{container.id}")

    assert answer.json() == {"id": container.id, "object": "container.deleted", "deleted": True}
    for attempt in (
        lambda: client.containers.retrieve(container.id),
        lambda: client.containers.delete(container.id),
        lambda: client.containers.files.list(container.id),
        lambda: client.containers.files.retrieve(file.id, container_id=container.id),
        lambda: read(client, container.id, file.id),
        lambda: execute(client, container.id, "1"),
    ):
        with pytest.raises(openai.NotFoundError):
            attempt()
    assert container.id not in [one.id for one in client.containers.list()]


def test_every_use_postpones_expiry(client):
    container = client.containers.create(name="x")
    seen = [container.last_active_at]
    for use in (
        lambda: client.containers.retrieve(container.id),
        lambda: client.containers.files.create(container.id, file=("a", b"x")),
        lambda: client.containers.files.list(container.id),
        lambda: execute(client, container.id, "1"),
    ):
        time.sleep(1.1)
        use()
        seen.append(next(one for one in client.containers.list() if one.id == container.id).last_active_at)

    assert seen == sorted(set(seen)), "it moved every time, and forwards"


# ── bad input ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "body, param, code",
    [
        ({}, "name", "missing_required_parameter"),
        ({"name": ""}, "name", "empty_string"),
        ({"name": 3}, "name", "invalid_type"),
        ({"name": "x" * 257}, "name", "string_above_max_length"),
        ({"name": "x", "memory_limit": "8g"}, "memory_limit", "invalid_value"),
        ({"name": "x", "memory_limit": 4}, "memory_limit", "invalid_type"),
        ({"name": "x", "file_ids": ["file-unknown"]}, "file_ids", "invalid_value"),
        ({"name": "x", "file_ids": ["x"] * 51}, "file_ids", "array_above_max_length"),
        ({"name": "x", "file_ids": "file-1"}, "file_ids", "invalid_type"),
        ({"name": "x", "expires_after": {"minutes": 5}}, "expires_after.anchor", "missing_required_parameter"),
        (
            {"name": "x", "expires_after": {"anchor": "created_at", "minutes": 5}},
            "expires_after.anchor",
            "invalid_value",
        ),
        (
            {"name": "x", "expires_after": {"anchor": "last_active_at", "minutes": 0}},
            "expires_after.minutes",
            "integer_below_min_value",
        ),
        (
            {"name": "x", "expires_after": {"anchor": "last_active_at", "minutes": 21}},
            "expires_after.minutes",
            "integer_above_max_value",
        ),
        ({"name": "x", "host_mounts": []}, "host_mounts", "unknown_parameter"),
        ({"name": "x", "skills": [{"type": "skill_reference"}]}, "skills[0].skill_id", "missing_required_parameter"),
        (
            {"name": "x", "network_policy": {"type": "allowlist", "allowed_domains": ["example.org"]}},
            "network_policy.type",
            "invalid_value",
        ),
    ],
)
def test_an_invalid_container_is_refused_and_not_created(env, client, body, param, code):
    with env.http() as http:
        answer = http.post("/v1/containers", json=body)

    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code)
    assert error["type"] == "invalid_request_error"
    assert client.containers.list().data == []


@pytest.mark.parametrize(
    "query, param, code",
    [
        ("limit=101", "limit", "integer_above_max_value"),
        ("limit=0", "limit", "integer_below_min_value"),
        ("limit=x", "limit", "invalid_type"),
        ("order=up", "order", "invalid_value"),
        ("after=cntr_none", "after", "invalid_value"),
    ],
)
def test_invalid_pagination_is_refused(env, client, container, query, param, code):
    with env.http() as http:
        for path in ("/v1/containers", f"/v1/containers/{container.id}/files"):
            error = http.get(f"{path}?{query}").json()["error"]
            assert (error["param"], error["code"]) == (param, code)


@pytest.mark.parametrize(
    "name",
    ["../a", "a/../../b", "/etc/passwd", "a//b", ".", "a/./b", "a\\b", "x" * 256, "/".join("x" * 65), "a\u202eb"],
)
def test_a_path_outside_of_the_container_is_refused(client, container, name):
    with pytest.raises(openai.BadRequestError) as error:
        client.containers.files.create(container.id, file=(name, b"x"))

    assert (error.value.param, error.value.code) == ("file", "invalid_value")
    assert files(client, container.id) == {}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--b--\r\n",
        b"nonsense",
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nhello',
        b'--b\r\nContent-Disposition: form-data; name="other"\r\n\r\nx\r\n--b--\r\n',
    ],
)
def test_a_malformed_upload_is_refused_and_leaves_no_file(env, client, container, body):
    headers = {"content-type": "multipart/form-data; boundary=b"}
    with env.http() as http:
        answer = http.post(f"/v1/containers/{container.id}/files", content=body, headers=headers)

    assert answer.status_code == 400
    assert files(client, container.id) == {}


@pytest.mark.parametrize(
    "body, param", [({}, "file_id"), ({"file_id": 3}, "file_id"), ({"file_id": "file-x"}, "file_id"), ({"x": 1}, "x")]
)
def test_an_unknown_file_id_is_refused(client, container, body, param):
    with pytest.raises(openai.BadRequestError) as error:
        client.post(f"/containers/{container.id}/files", cast_to=object, body=body)

    assert error.value.param == param


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_is_uploaded_and_downloaded(client, container):
    content = os.urandom(3_000_000)
    made = client.containers.files.create(container.id, file=("project/src/nä me.html", io.BytesIO(content)))
    answer = client.containers.files.content.with_raw_response.retrieve(made.id, container_id=container.id)

    assert set(json.loads(made.to_json())) == {"id", "object", "created_at", "bytes", "container_id", "path", "source"}
    assert made.id.startswith("cfile_")
    assert (made.object, made.container_id, made.source) == ("container.file", container.id, "user")
    assert (made.path, made.bytes) == ("/mnt/data/project/src/nä me.html", 3_000_000)
    assert client.containers.files.retrieve(made.id, container_id=container.id).path == made.path
    assert answer.content == content
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["x-content-type-options"] == "nosniff"
    seen = execute(client, container.id, "open('/mnt/data/project/src/nä me.html', 'rb').read(4)")
    assert seen["result"] == repr(content[:4])


def test_file_names_may_be_absolute_or_missing(client, container):
    for file in (("/mnt/data/a/b.txt", b"1"), ("./c.txt", b"2"), b"3"):
        client.containers.files.create(container.id, file=file)

    assert set(files(client, container.id)) == {"/mnt/data/a/b.txt", "/mnt/data/c.txt", "/mnt/data/upload"}


def test_an_empty_file(client, container):
    made = client.containers.files.create(container.id, file=("empty", b""))

    assert made.bytes == 0
    assert read(client, container.id, made.id) == b""


def test_an_upload_replaces_a_file_under_a_new_id(client, container):
    first = client.containers.files.create(container.id, file=("a.txt", b"first"))
    second = client.containers.files.create(container.id, file=("a.txt", b"again"))

    assert first.id != second.id
    assert [file.id for file in client.containers.files.list(container.id)] == [second.id]
    with pytest.raises(openai.NotFoundError, match=f"File {first.id} not found on container {container.id}"):
        client.containers.files.delete(first.id, container_id=container.id)
    assert read(client, container.id, second.id) == b"again"


def test_uploaded_files_are_copied_by_their_ids(client):
    one = client.files.create(file=("data/a.csv", b"1,2"), purpose="user_data")
    same = client.files.create(file=("data/a.csv", b"3,4"), purpose="user_data")
    odd = client.files.create(file=("../../etc/passwd", b"root"), purpose="user_data")
    container = client.containers.create(name="x", file_ids=[one.id, same.id, odd.id])
    found = files(client, container.id)

    assert set(found) == {"/mnt/data/data/a.csv", f"/mnt/data/data/{same.id}-a.csv", "/mnt/data/passwd"}
    assert read(client, container.id, found["/mnt/data/data/a.csv"].id) == b"1,2"
    assert {file.source for file in found.values()} == {"user"}
    execute(client, container.id, "open('data/a.csv', 'w').write('changed')")
    again = client.containers.files.create(container.id, file_id=one.id)
    assert again.path == "/mnt/data/data/a.csv"
    assert read(client, container.id, again.id) == b"1,2"
    client.files.delete(one.id)
    assert read(client, container.id, again.id) == b"1,2"


def test_a_deleted_file_is_not_found_by_api_and_code(env, client, container):
    made = client.containers.files.create(container.id, file=("a.txt", b"x"))
    with env.http() as http:
        answer = http.delete(f"/v1/containers/{container.id}/files/{made.id}")

    assert answer.json() == {"id": made.id, "object": "container.file.deleted", "deleted": True}
    assert files(client, container.id) == {}
    assert execute(client, container.id, "import os; os.listdir()")["result"] == "[]"
    for attempt in (
        lambda: client.containers.files.retrieve(made.id, container_id=container.id),
        lambda: client.containers.files.delete(made.id, container_id=container.id),
        lambda: read(client, container.id, made.id),
    ):
        with pytest.raises(openai.NotFoundError, match=f"File {made.id} not found on container {container.id}"):
            attempt()


def test_files_are_listed_page_by_page(client, container):
    made = [client.containers.files.create(container.id, file=(f"{n}.txt", b"x")).id for n in range(5)]

    assert [file.id for file in client.containers.files.list(container.id, limit=2)] == made[::-1]
    assert [file.id for file in client.containers.files.list(container.id, limit=2, order="asc")] == made
    assert client.containers.files.list(container.id, limit=2).has_more


def test_files_written_by_code_are_listed_and_removed_ones_are_not(client, container):
    client.containers.files.create(container.id, file=("old.txt", b"old"))
    client.containers.files.create(container.id, file=("kept.txt", b"kept"))
    kept = files(client, container.id)["/mnt/data/kept.txt"]
    ran = execute(
        client,
        container.id,
        "import os\nos.makedirs('out')\nopen('out/new.txt','w').write('new')\nos.remove('old.txt')\n"
        "os.symlink('/etc/passwd', 'link')",
    )
    found = files(client, container.id)

    assert [(file["path"], file["bytes"], file["source"]) for file in ran["files"]] == [
        ("/mnt/data/out/new.txt", 3, "assistant")
    ]
    assert set(found) == {"/mnt/data/kept.txt", "/mnt/data/out/new.txt"}
    assert found["/mnt/data/kept.txt"].id == kept.id
    assert read(client, container.id, ran["files"][0]["id"]) == b"new"


def test_files_of_background_threads_are_listed(client, container):
    execute(
        client,
        container.id,
        "import threading\ndef later():\n    open('later.txt', 'w').write('x')\nthreading.Timer(0.3, later).start()",
    )
    deadline = time.monotonic() + 10
    while "/mnt/data/later.txt" not in files(client, container.id):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_containers_api_is_404_without_a_sandbox_backend(tmp_path):
    with run_server(tmp_path) as server, server.client() as sdk:
        with pytest.raises(openai.NotFoundError) as error:
            sdk.containers.create(name="x")
        assert error.value.code == "unknown_url"
        assert "off" in error.value.message
