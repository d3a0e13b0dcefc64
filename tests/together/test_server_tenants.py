"""API keys, tenants, rate limits, files and audit log: server process and SDK."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
import time
from contextlib import ExitStack

import openai
import pytest
from fixtures_sdk import CLIENT_KINDS, sdk_client
from fixtures_server import ROOT, create_key, run_server


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    directory = tmp_path_factory.mktemp("server")
    keys = {
        "owner": create_key(directory, "owner", "--tenant", "a"),
        "second_key": create_key(directory, "second_key", "--tenant", "a"),
        "other_tenant": create_key(directory, "other_tenant", "--tenant", "b"),
        "few": create_key(directory, "few", "--requests-per-minute", "2"),
        "few_async": create_key(directory, "few_async", "--requests-per-minute", "2"),
        "one": create_key(directory, "one", "--concurrent-responses", "1"),
        "revoked": create_key(directory, "revoked"),
    }
    with run_server(directory, {"auth": {"keys_file": "keys.json"}}) as running:
        running.keys = keys
        yield running


@pytest.fixture(params=CLIENT_KINDS)
def client(request, server):
    """Creates SDK clients of one kind, sync or async, by key name."""
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(sdk_client(server.url, request.param, server.keys[name]))


@pytest.fixture
def owner(client):
    return client("owner")


@pytest.fixture
def other_tenant(client):
    return client("other_tenant")


# ── authentication ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_key_file_is_private_and_has_only_hashes(server):
    path = server.directory / "keys.json"

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not any(key.split("-", 3)[3] in path.read_text() for key in server.keys.values())


@pytest.mark.parametrize("path", ["/v1/models", "/v1/responses", "/metrics", "/v1/nothing", "/", "/v1/files/x/content"])
@pytest.mark.parametrize(
    "header", [None, "Bearer wrong", "Bearer", "Basic abc", "Bearer sk-antwort-0000000000000000-" + "A" * 43]
)
def test_every_path_requires_a_key(server, path, header):
    with server.http() as http:
        answer = http.get(path, headers={"authorization": header} if header else {})

    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert answer.headers["x-request-id"].startswith("req_")


def test_a_valid_key_id_with_a_wrong_secret_is_rejected(server):
    wrong_key = server.keys["owner"][:-1] + ("A" if server.keys["owner"][-1] != "A" else "B")
    with server.client(wrong_key) as client, pytest.raises(openai.AuthenticationError):
        client.models.list()


def test_health_endpoints_need_no_key(server):
    with server.http() as http:
        assert http.get("/healthz").json() == {"status": "ok"}
        assert http.get("/readyz").json() == {"status": "ready"}


def test_a_revoked_key_stops_working_while_the_server_runs(server):
    key = server.keys["revoked"]
    with server.client(key) as client:
        assert client.models.list().data
        command = [sys.executable, "-m", "antwort", "keys", "--file", "keys.json", "revoke", key.split("-")[2]]
        subprocess.run(
            command,
            cwd=server.directory,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            check=True,
            capture_output=True,
        )
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            time.sleep(0.2)
            try:
                client.models.list()
            except openai.AuthenticationError:
                return
    pytest.fail("a revoked key is still accepted")


# ── tenants ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_objects_of_another_tenant_are_not_found(owner, other_tenant):
    response = owner.responses.create(input="hello")
    background = owner.responses.create(input="hello", background=True)
    conversation = owner.conversations.create(items=[{"role": "user", "content": "x", "type": "message"}])
    item = owner.conversations.items.list(conversation.id).data[0]
    file = owner.files.create(file=("a.txt", b"content"), purpose="user_data")
    absent = "resp_00000000000000000000000000000000"

    for attempt, reference in [
        (lambda: other_tenant.responses.retrieve(response.id), lambda: other_tenant.responses.retrieve(absent)),
        (lambda: other_tenant.responses.delete(response.id), lambda: other_tenant.responses.delete(absent)),
        (lambda: other_tenant.responses.cancel(background.id), lambda: other_tenant.responses.cancel(absent)),
        (lambda: list(other_tenant.responses.retrieve(background.id, stream=True)), None),
        (lambda: other_tenant.responses.input_items.list(response.id), None),
        (lambda: other_tenant.conversations.retrieve(conversation.id), None),
        (lambda: other_tenant.conversations.update(conversation.id, metadata={}), None),
        (lambda: other_tenant.conversations.delete(conversation.id), None),
        (lambda: other_tenant.conversations.items.list(conversation.id), None),
        (lambda: other_tenant.conversations.items.retrieve(item.id, conversation_id=conversation.id), None),
        (lambda: other_tenant.conversations.items.delete(item.id, conversation_id=conversation.id), None),
        (lambda: other_tenant.conversations.items.create(conversation.id, items=[]), None),
        (lambda: other_tenant.files.retrieve(file.id), None),
        (lambda: other_tenant.files.content(file.id), None),
        (lambda: other_tenant.files.delete(file.id), None),
        (lambda: other_tenant.responses.create(input="x", conversation=conversation.id), None),
        (lambda: other_tenant.responses.create(input=[{"type": "item_reference", "id": item.id}]), None),
    ]:
        with pytest.raises(openai.NotFoundError) as rejected:
            attempt()
        if reference is not None:
            with pytest.raises(openai.NotFoundError) as missing:
                reference()
            assert rejected.value.message.replace(response.id, "").replace(background.id, "") == (
                missing.value.message.replace(absent, "")
            )
    with pytest.raises(openai.BadRequestError) as chained:
        other_tenant.responses.create(input="x", previous_response_id=response.id)
    assert chained.value.code == "previous_response_not_found"
    assert other_tenant.files.list().data == []
    assert owner.responses.retrieve(response.id).id == response.id
    assert owner.conversations.items.list(conversation.id).data[0].id == item.id
    assert owner.files.content(file.id).read() == b"content"


def test_keys_of_one_tenant_share_objects(client, owner):
    response = owner.responses.create(input="hello")

    assert client("second_key").responses.retrieve(response.id).id == response.id


# ── limits ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind, name", [("sync", "few"), ("async", "few_async")])
def test_a_key_has_its_own_rate_limit(server, kind, name):
    with sdk_client(server.url, kind, server.keys[name]) as few:
        answer = few.models.with_raw_response.list()
        assert answer.headers["x-ratelimit-limit-requests"] == "2"
        few.models.list()
        with pytest.raises(openai.RateLimitError) as caught:
            few.models.list()
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 30
    with sdk_client(server.url, kind, server.keys["owner"]) as owner:
        assert owner.models.list().data


def test_a_key_has_a_limit_of_concurrent_responses(client):
    one = client("one")
    running = one.responses.create(input="forever", background=True)
    with pytest.raises(openai.RateLimitError):
        one.responses.create(input="hello")
    one.responses.cancel(running.id)
    assert one.responses.create(input="hello").status == "completed"
    with one.responses.create(input="hello", stream=True) as stream:
        assert len(list(stream)) > 3
    assert one.responses.create(input="hello").status == "completed"


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_upload_and_download(owner):
    content = os.urandom(3_000_000)
    file = owner.files.create(file=("dir/näme.html", io.BytesIO(content)), purpose="user_data")
    answer = owner.files.with_raw_response.content(file.id)

    assert (file.bytes, file.filename, file.purpose, file.object) == (3_000_000, "dir/näme.html", "user_data", "file")
    assert answer.content == content
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-type"] == "application/octet-stream"
    assert file.id in [one.id for one in owner.files.list(limit=1000)]
    assert owner.files.list(purpose="evals").data == []
    assert owner.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        owner.files.retrieve(file.id)


def test_expires_after_of_a_file(owner):
    file = owner.files.create(
        file=("a", b"x"), purpose="user_data", expires_after={"anchor": "created_at", "seconds": 3600}
    )

    assert file.expires_at == file.created_at + 3600
    with pytest.raises(openai.BadRequestError):
        owner.files.create(file=("a", b"x"), purpose="user_data", expires_after={"anchor": "created_at", "seconds": 1})


def test_form_fields_may_follow_the_file(server):
    body = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nhello\r\n'
        b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n--b--\r\n'
    )
    with server.http(headers={"authorization": f"Bearer {server.keys['owner']}"}) as http:
        answer = http.post("/v1/files", content=body, headers={"content-type": "multipart/form-data; boundary=b"})

    assert (answer.status_code, answer.json()["bytes"]) == (200, 5)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--b",
        b"not a form",
        b"--b--\r\n",
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nhello',
        (
            b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nnope\r\n'
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nhello\r\n--b--\r\n'
        ),
        b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n' + b"x" * 100_000 + b"\r\n--b--\r\n",
        b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\ny\r\n' * 1000 + b"--b--\r\n",
        b"--b\r\nContent-Disposition: form-data; name=" + b"y" * 100_000,
        b"--b\r\n" + b"X: y\r\n" * 10_000,
    ],
)
def test_a_malformed_form_is_rejected_and_stores_nothing(server, body):
    with server.http(headers={"authorization": f"Bearer {server.keys['other_tenant']}"}) as http:
        answer = http.post("/v1/files", content=body, headers={"content-type": "multipart/form-data; boundary=b"})

        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"
        assert http.get("/v1/files").json()["data"] == []


def test_audit_records_have_tenant_and_request_and_the_log_no_content(server, owner):
    response = owner.responses.create(input="secret content")
    owner.responses.delete(response.id)
    lines = [json.loads(line) for line in server.read_log().splitlines()]
    audits = {line["action"]: line for line in lines if line.get("object_id") == response.id}

    assert set(audits) == {"response.create", "response.delete"}
    assert audits["response.delete"]["tenant"] == "a"
    assert audits["response.delete"]["request_id"].startswith("req_")
    assert "secret content" not in server.read_log()
    assert not any(key.split("-", 3)[3] in server.read_log() for key in server.keys.values())


def test_every_change_has_an_audit_record(server, client):
    other_tenant = client("other_tenant")
    response = other_tenant.responses.create(input="hello")
    background = other_tenant.responses.create(input="forever", background=True)
    other_tenant.responses.cancel(background.id)
    other_tenant.responses.delete(response.id)
    conversation = other_tenant.conversations.create()
    item = other_tenant.conversations.items.create(conversation.id, items=[{"role": "user", "content": "x"}]).data[0]
    other_tenant.conversations.items.delete(item.id, conversation_id=conversation.id)
    other_tenant.conversations.update(conversation.id, metadata={})
    other_tenant.conversations.delete(conversation.id)
    file = other_tenant.files.create(file=("a", b"x"), purpose="user_data")
    other_tenant.files.delete(file.id)
    identifiers = {response.id, background.id, conversation.id, file.id}
    audits = [line for line in map(json.loads, server.read_log().splitlines()) if line.get("object_id") in identifiers]

    assert [line["action"] for line in audits] == [
        "response.create",
        "response.create",
        "response.cancel",
        "response.delete",
        "conversation.create",
        "conversation.items.create",
        "conversation.items.delete",
        "conversation.update",
        "conversation.delete",
        "file.create",
        "file.delete",
    ]
    assert {line["tenant"] for line in audits} == {"b"}
    assert len({line["request_id"] for line in audits}) == len(audits)
