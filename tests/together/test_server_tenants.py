"""The real process with keys: two tenants, what is whose, how much, and files."""

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
    place = tmp_path_factory.mktemp("server")
    keys = {
        "ours": create_key(place, "ours", "--tenant", "a"),
        "colleague": create_key(place, "colleague", "--tenant", "a"),
        "theirs": create_key(place, "theirs", "--tenant", "b"),
        "few": create_key(place, "few", "--requests-per-minute", "2"),
        "as few": create_key(place, "as few", "--requests-per-minute", "2"),
        "one": create_key(place, "one", "--concurrent-responses", "1"),
        "fired": create_key(place, "fired"),
    }
    with run_server(place, {"auth": {"keys_file": "keys.json"}}) as running:
        running.keys = keys
        yield running


@pytest.fixture(params=CLIENT_KINDS)
def client(request, server):
    """Makes clients of one kind: of the SDK for code that waits, or of the one for code that does not."""
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(sdk_client(server.url, request.param, server.keys[name]))


@pytest.fixture
def ours(client):
    return client("ours")


@pytest.fixture
def theirs(client):
    return client("theirs")


# ── who comes in ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_only_hashes_are_kept_and_only_the_owner_reads_them(server):
    path = server.directory / "keys.json"

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not any(key.split("-", 3)[3] in path.read_text() for key in server.keys.values())


@pytest.mark.parametrize("path", ["/v1/models", "/v1/responses", "/metrics", "/v1/nothing", "/", "/v1/files/x/content"])
@pytest.mark.parametrize(
    "header", [None, "Bearer wrong", "Bearer", "Basic abc", "Bearer sk-antwort-0000000000000000-" + "A" * 43]
)
def test_nothing_is_open_without_a_key(server, path, header):
    with server.http() as http:
        answer = http.get(path, headers={"authorization": header} if header else {})

    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert answer.headers["x-request-id"].startswith("req_")


def test_a_good_id_with_a_wrong_secret_opens_nothing(server):
    forged = server.keys["ours"][:-1] + ("A" if server.keys["ours"][-1] != "A" else "B")
    with server.client(forged) as client, pytest.raises(openai.AuthenticationError):
        client.models.list()


def test_health_is_open_and_says_nothing(server):
    with server.http() as http:
        assert http.get("/healthz").json() == {"status": "ok"}
        assert http.get("/readyz").json() == {"status": "ready"}


def test_a_revoked_key_stops_working_while_the_server_runs(server):
    key = server.keys["fired"]
    with server.client(key) as client:
        assert client.models.list().data
        command = [sys.executable, "-m", "antwort", "keys", "revoke", key.split("-")[2]]
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
    pytest.fail("a revoked key still opens the door")


# ── whose is it ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_not_the_callers_is_not_there(ours, theirs):
    response = ours.responses.create(input="hello")
    background = ours.responses.create(input="hello", background=True)
    conversation = ours.conversations.create(items=[{"role": "user", "content": "x", "type": "message"}])
    item = ours.conversations.items.list(conversation.id).data[0]
    file = ours.files.create(file=("a.txt", b"content"), purpose="user_data")
    absent = "resp_00000000000000000000000000000000"

    for attempt, same_as in [
        (lambda: theirs.responses.retrieve(response.id), lambda: theirs.responses.retrieve(absent)),
        (lambda: theirs.responses.delete(response.id), lambda: theirs.responses.delete(absent)),
        (lambda: theirs.responses.cancel(background.id), lambda: theirs.responses.cancel(absent)),
        (lambda: list(theirs.responses.retrieve(background.id, stream=True)), None),
        (lambda: theirs.responses.input_items.list(response.id), None),
        (lambda: theirs.conversations.retrieve(conversation.id), None),
        (lambda: theirs.conversations.update(conversation.id, metadata={}), None),
        (lambda: theirs.conversations.delete(conversation.id), None),
        (lambda: theirs.conversations.items.list(conversation.id), None),
        (lambda: theirs.conversations.items.retrieve(item.id, conversation_id=conversation.id), None),
        (lambda: theirs.conversations.items.delete(item.id, conversation_id=conversation.id), None),
        (lambda: theirs.conversations.items.create(conversation.id, items=[]), None),
        (lambda: theirs.files.retrieve(file.id), None),
        (lambda: theirs.files.content(file.id), None),
        (lambda: theirs.files.delete(file.id), None),
        (lambda: theirs.responses.create(input="x", conversation=conversation.id), None),
        (lambda: theirs.responses.create(input=[{"type": "item_reference", "id": item.id}]), None),
    ]:
        with pytest.raises(openai.NotFoundError) as refused:
            attempt()
        if same_as is not None:
            with pytest.raises(openai.NotFoundError) as missing:
                same_as()
            assert refused.value.message.replace(response.id, "").replace(background.id, "") == (
                missing.value.message.replace(absent, "")
            )
    with pytest.raises(openai.BadRequestError) as chained:
        theirs.responses.create(input="x", previous_response_id=response.id)
    assert chained.value.code == "previous_response_not_found"
    assert theirs.files.list().data == []
    assert ours.responses.retrieve(response.id).id == response.id
    assert ours.conversations.items.list(conversation.id).data[0].id == item.id
    assert ours.files.content(file.id).read() == b"content"


def test_keys_of_one_tenant_see_the_same(client, ours):
    response = ours.responses.create(input="hello")

    assert client("colleague").responses.retrieve(response.id).id == response.id


# ── how much ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind, name", [("sync", "few"), ("async", "as few")])
def test_a_key_has_its_own_rate(server, kind, name):
    with sdk_client(server.url, kind, server.keys[name]) as few:
        answer = few.models.with_raw_response.list()
        assert answer.headers["x-ratelimit-limit-requests"] == "2"
        few.models.list()
        with pytest.raises(openai.RateLimitError) as caught:
            few.models.list()
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 30
    with sdk_client(server.url, kind, server.keys["ours"]) as ours:
        assert ours.models.list().data


def test_a_key_has_so_many_responses_at_once(client):
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


def test_files_go_in_and_come_out(ours):
    content = os.urandom(3_000_000)
    file = ours.files.create(file=("dir/näme.html", io.BytesIO(content)), purpose="user_data")
    answer = ours.files.with_raw_response.content(file.id)

    assert (file.bytes, file.filename, file.purpose, file.object) == (3_000_000, "dir/näme.html", "user_data", "file")
    assert answer.content == content
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-type"] == "application/octet-stream"
    assert file.id in [one.id for one in ours.files.list(limit=1000)]
    assert ours.files.list(purpose="evals").data == []
    assert ours.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        ours.files.retrieve(file.id)


def test_a_file_may_expire(ours):
    file = ours.files.create(
        file=("a", b"x"), purpose="user_data", expires_after={"anchor": "created_at", "seconds": 3600}
    )

    assert file.expires_at == file.created_at + 3600
    with pytest.raises(openai.BadRequestError):
        ours.files.create(file=("a", b"x"), purpose="user_data", expires_after={"anchor": "created_at", "seconds": 1})


def test_the_fields_of_a_form_may_come_behind_the_file(server):
    body = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nhello\r\n'
        b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n--b--\r\n'
    )
    with server.http(headers={"authorization": f"Bearer {server.keys['ours']}"}) as http:
        answer = http.post("/v1/files", content=body, headers={"content-type": "multipart/form-data; boundary=b"})

    assert (answer.status_code, answer.json()["bytes"]) == (200, 5)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--b",
        b"nonsense",
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
def test_a_broken_form_is_refused_and_leaves_nothing(server, body):
    with server.http(headers={"authorization": f"Bearer {server.keys['theirs']}"}) as http:
        answer = http.post("/v1/files", content=body, headers={"content-type": "multipart/form-data; boundary=b"})

        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"
        assert http.get("/v1/files").json()["data"] == []


def test_the_log_says_who_changed_what_and_not_what_was_said(server, ours):
    response = ours.responses.create(input="a secret of ours")
    ours.responses.delete(response.id)
    lines = [json.loads(line) for line in server.read_log().splitlines()]
    audits = {line["action"]: line for line in lines if line.get("object_id") == response.id}

    assert set(audits) == {"response.create", "response.delete"}
    assert audits["response.delete"]["tenant"] == "a"
    assert audits["response.delete"]["request_id"].startswith("req_")
    assert "a secret of ours" not in server.read_log()
    assert not any(key.split("-", 3)[3] in server.read_log() for key in server.keys.values())


def test_every_change_has_a_line_that_says_who_made_it(server, client):
    theirs = client("theirs")
    response = theirs.responses.create(input="hello")
    background = theirs.responses.create(input="forever", background=True)
    theirs.responses.cancel(background.id)
    theirs.responses.delete(response.id)
    conversation = theirs.conversations.create()
    item = theirs.conversations.items.create(conversation.id, items=[{"role": "user", "content": "x"}]).data[0]
    theirs.conversations.items.delete(item.id, conversation_id=conversation.id)
    theirs.conversations.update(conversation.id, metadata={})
    theirs.conversations.delete(conversation.id)
    file = theirs.files.create(file=("a", b"x"), purpose="user_data")
    theirs.files.delete(file.id)
    made = {response.id, background.id, conversation.id, file.id}
    audits = [line for line in map(json.loads, server.read_log().splitlines()) if line.get("object_id") in made]

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
