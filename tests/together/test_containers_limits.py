"""Whose containers these are, how many there may be, when they expire, and what is told of them."""

from __future__ import annotations

import io
import json
import re
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import openai
import pytest
from fixtures_code_interpreter import PLACES, descendants
from fixtures_container_server import execute, files, read, staged
from fixtures_server import ROOT, run_server
from fixtures_spans import read_spans
from waiting import wait_until

SHORT = {"containers": {"expires_after": 0.04}}  # not even three seconds


# ── whose is it ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_not_the_callers_is_not_there(stage, client, container):
    file = client.containers.files.create(container.id, file=("a.txt", b"ours"))
    upload = client.files.create(file=("u.txt", b"ours too"), purpose="user_data")
    absent = "cntr_00000000000000000000000000000000"
    path = f"/v1/containers/{container.id}"
    with stage.server.client(stage.server.keys["theirs"]) as theirs, stage.http("theirs") as http:
        for attempt in (
            theirs.containers.retrieve,
            theirs.containers.delete,
            theirs.containers.files.list,
            lambda name: theirs.containers.files.create(name, file=("b.txt", b"theirs")),
            lambda name: theirs.containers.files.retrieve(file.id, container_id=name),
            lambda name: theirs.containers.files.delete(file.id, container_id=name),
            lambda name: read(theirs, name, file.id),
            lambda name: execute(theirs, name, "open('a.txt').read()"),
        ):
            with pytest.raises(openai.NotFoundError) as refused:
                attempt(container.id)
            with pytest.raises(openai.NotFoundError) as missing:
                attempt(absent)
            assert refused.value.message.replace(container.id, "") == missing.value.message.replace(absent, "")
        assert http.get(f"{path}/archive").status_code == 404
        assert http.put(f"{path}/archive", content=b"").status_code == 404
        with pytest.raises(openai.BadRequestError):
            theirs.containers.create(name="x", file_ids=[upload.id])
        assert theirs.containers.list().data == []

        own = theirs.containers.create(name="x")
        with pytest.raises(openai.NotFoundError):
            read(theirs, own.id, file.id)  # our file by way of their container
        with pytest.raises(openai.BadRequestError):
            theirs.containers.files.create(own.id, file_id=upload.id)
        theirs.containers.delete(own.id)
    assert read(client, container.id, file.id) == b"ours"
    assert set(files(client, container.id)) == {"/mnt/data/a.txt"}


def test_keys_of_one_tenant_share_their_containers(stage, client, container):
    execute(client, container.id, "x = 1")
    with stage.server.client(stage.server.keys["colleague"]) as colleague:
        assert execute(colleague, container.id, "x + 1")["result"] == "2"


# ── how much ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def thrifty(stage):
    """A client of a tenant that nobody else shares."""
    with stage.server.client(stage.server.keys["thrifty"]) as sdk:
        yield sdk
        for container in sdk.containers.list(limit=100):
            sdk.containers.delete(container.id)


def over(error) -> str:
    """What there was too much of; an SDK must not try again by itself."""
    told = error.value
    assert (told.status_code, told.code, told.type) == (429, "insufficient_quota", "insufficient_quota")
    assert told.response.headers["x-should-retry"] == "false"
    return told.message.partition("quota of ")[2].partition(":")[0]


def test_an_owner_has_so_many_containers(thrifty):
    made = [thrifty.containers.create(name="x").id for _ in range(6)]
    with pytest.raises(openai.RateLimitError) as error:
        thrifty.containers.create(name="one too many")

    assert over(error) == "containers"
    thrifty.containers.delete(made[0])
    assert thrifty.containers.create(name="x").status == "running"


def test_many_at_once_are_not_more_than_allowed(stage, thrifty):
    def create(_):
        with stage.server.client(stage.server.keys["thrifty"]) as sdk, suppress(openai.RateLimitError):
            return sdk.containers.create(name="x").id

    with ThreadPoolExecutor(12) as threads:
        made = [one for one in threads.map(create, range(12)) if one]
    assert len(made) == len(thrifty.containers.list().data) == 6


def test_an_owner_has_so_much_memory(thrifty):
    thrifty.containers.create(name="x", memory_limit="4g")
    with pytest.raises(openai.RateLimitError) as error:
        thrifty.containers.create(name="x", memory_limit="16g")
    assert over(error) == "memory"
    thrifty.containers.create(name="x", memory_limit="4g")
    with pytest.raises(openai.RateLimitError):
        thrifty.containers.create(name="x")


def test_an_owner_has_so_much_room_for_files(stage, thrifty):
    one, other = thrifty.containers.create(name="x"), thrifty.containers.create(name="y")
    first = thrifty.containers.files.create(one.id, file=("a", b"x" * 5_000_000))
    large = thrifty.files.create(file=("large", b"x" * 5_000_000), purpose="user_data")
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        member = tarfile.TarInfo("b")
        member.size = 5_000_000
        archive.addfile(member, io.BytesIO(b"x" * 5_000_000))

    for attempt in (
        lambda: thrifty.containers.files.create(other.id, file=("b", b"x" * 5_000_000)),
        lambda: thrifty.containers.files.create(other.id, file_id=large.id),
        lambda: thrifty.containers.create(name="z", file_ids=[large.id]),
    ):
        with pytest.raises(openai.RateLimitError) as error:
            attempt()
        assert over(error) == "disk"
    with stage.http("thrifty") as http:
        answer = http.put(f"/v1/containers/{other.id}/archive", content=whole.getvalue())
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "insufficient_quota")

    wait_until(lambda: files(thrifty, other.id) == {})
    assert len(thrifty.containers.list().data) == 2
    thrifty.containers.files.delete(first.id, container_id=one.id)
    assert thrifty.containers.files.create(other.id, file=("b", b"x" * 5_000_000)).bytes == 5_000_000


def test_code_that_filled_the_quota_runs_again_when_there_is_room(thrifty):
    container = thrifty.containers.create(name="x")
    ran = execute(thrifty, container.id, "open('a', 'wb').write(bytes(9_000_000))")
    with pytest.raises(openai.RateLimitError) as error:
        execute(thrifty, container.id, "1")

    assert over(error) == "disk"
    thrifty.containers.files.delete(ran["files"][0]["id"], container_id=container.id)
    assert execute(thrifty, container.id, "1")["result"] == "1"


def test_a_full_container_says_so_and_works_on(client, container):
    code = "for n in range(6):\n    with open(f'/tmp/{n}', 'wb') as file:\n        file.write(bytes(100 << 20))"
    ran = execute(client, container.id, code)

    assert ran["status"] == "error"
    assert "No space left on device" in "".join(one["text"] for one in ran["output"])
    assert execute(client, container.id, "1 + 1")["result"] == "2"


# ── how long ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module", params=PLACES)
def hasty(request, tmp_path_factory):
    """A server whose containers expire soon."""
    with staged(request.param, tmp_path_factory.mktemp(request.param), SHORT) as running:
        yield running


def status(client, container_id) -> str:
    """Being listed is no use, so one can look on."""
    return next(one.status for one in client.containers.list() if one.id == container_id)


def test_an_idle_container_expires_and_keeps_what_is_known_of_it(hasty):
    with hasty.server.client() as client:
        container = client.containers.create(name="short")
        file = client.containers.files.create(container.id, file=("a.txt", b"abc"))
        assert container.expires_after.minutes == 0.04
        interpreters = set(descendants(hasty.sandbox_pid()))
        wait_until(lambda: status(client, container.id) == "expired")

        for _ in range(2):  # asking does not bring it back
            found = client.containers.retrieve(container.id)
            assert (found.status, found.name, found.created_at) == ("expired", "short", container.created_at)
        assert [one.id for one in client.containers.files.list(container.id)] == [file.id]
        assert client.containers.files.retrieve(file.id, container_id=container.id).bytes == 3
        for attempt in (
            lambda: read(client, container.id, file.id),
            lambda: client.containers.files.create(container.id, file=("b.txt", b"x")),
            lambda: client.containers.files.delete(file.id, container_id=container.id),
            lambda: execute(client, container.id, "1"),
        ):
            with pytest.raises(openai.BadRequestError) as error:
                attempt()
            assert error.value.body == {
                "message": "Container is expired.",
                "type": "invalid_request_error",
                "param": None,
                "code": None,
            }
        assert interpreters
        wait_until(lambda: hasty.sandbox is None or hasty.sandbox.sessions() == [])
        client.containers.delete(container.id)
        with pytest.raises(openai.NotFoundError):
            client.containers.retrieve(container.id)


def test_use_keeps_a_container_alive(hasty):
    with hasty.server.client() as client:
        container = client.containers.create(name="x")
        execute(client, container.id, "x = 1")
        for _ in range(6):
            time.sleep(1)
            client.containers.retrieve(container.id)
        assert execute(client, container.id, "x")["result"] == "1"
        client.containers.delete(container.id)


def test_a_container_does_not_expire_while_code_runs_in_it(hasty):
    with hasty.server.client() as client:
        container = client.containers.create(name="x")
        ran = execute(client, container.id, "import time\ntime.sleep(5)\n'done'")

        assert ran["result"] == "'done'"
        assert client.containers.retrieve(container.id).status == "running"
        client.containers.delete(container.id)


def test_what_has_expired_takes_nothing_of_a_quota(tmp_path):
    config = {**SHORT, "containers": {**SHORT["containers"], "max_containers": 1}}
    with staged("local", tmp_path, config) as running, running.server.client() as client:
        container = client.containers.create(name="x")
        with pytest.raises(openai.RateLimitError):
            client.containers.create(name="y")
        wait_until(lambda: status(client, container.id) == "expired")
        assert client.containers.create(name="y").status == "running"


def test_what_expired_long_ago_is_forgotten(tmp_path):
    config = {**SHORT, "containers": {**SHORT["containers"], "forget_after": 1e-6}}
    with staged("local", tmp_path, config) as running, running.server.client() as client:
        client.containers.create(name="x")
        wait_until(lambda: client.containers.list().data == [])
        assert running.rows("SELECT count(*) FROM containers") == [(0,)]


# ── what is told ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_log_tells_ids_and_tiers_and_never_code_or_data(stage, client):
    container = client.containers.create(name="a secret name")
    file = client.containers.files.create(container.id, file=("secret-path.txt", b"secret content"))
    execute(
        client, container.id, "print('secret output')\nopen('secret-made.txt', 'w').write('secret text')\n'secret echo'"
    )
    execute(client, container.id, "raise ValueError('secret failure')")
    read(client, container.id, file.id)
    client.containers.files.delete(file.id, container_id=container.id)
    client.containers.delete(container.id)
    lines = [json.loads(line) for line in stage.server.read_log().splitlines() if container.id in line]

    assert "secret" not in stage.server.read_log()
    assert [line["action"].removeprefix("container.") for line in lines if line["event"] == "audit"] == [
        *("create", "acquire", "file.create", "execute", "execute", "file.delete", "delete")
    ]
    assert {line["tier"] for line in lines if "tier" in line} == {"1g"}
    assert {line["tenant"] for line in lines} == {"a"}
    executed = next(line for line in lines if line.get("action") == "container.execute")
    assert (executed["status"], executed["printed"]) == ("ok", len("secret output\n"))


def test_the_metrics_count_sandboxes_runs_and_bytes(stage, client, container):
    def metrics():
        with stage.http() as http:
            page = http.get("/metrics").text
        samples = (line.rpartition(" ") for line in page.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    before = metrics()
    file = client.containers.files.create(container.id, file=("a", b"x" * 1000))
    execute(client, container.id, "1 / 0")
    read(client, container.id, file.id)
    after = metrics()

    def grown(name):
        return after.get(name, 0) - before.get(name, 0)

    assert grown("antwort_sandboxes") == 1
    assert grown('antwort_sandbox_seconds_count{status="ok",work="acquire"}') == 1
    assert grown('antwort_sandbox_seconds_count{status="error",work="execute"}') == 1
    assert grown('antwort_container_bytes_total{direction="in"}') == 1000
    assert grown('antwort_container_bytes_total{direction="out"}') == 1000
    client.containers.delete(container.id)
    assert metrics()["antwort_sandboxes"] == before["antwort_sandboxes"]
    assert grown('antwort_containers_total{event="created",tier="1g"}') == 0


def test_spans_tell_of_the_sandbox_and_never_what_was_in_it(tmp_path):
    config = {"providers": {"code_interpreter": {"enabled": True}}}
    program = ROOT / "tests" / "support" / "fixtures_spans.py"
    with run_server(tmp_path, config, program=program) as server, server.client() as client:
        container = client.containers.create(name="a secret name")
        execute(client, container.id, "print('secret output')\nopen('secret', 'w').write('secret')\n1 / 0")
        # The span of the request ends last, and after its answer has gone out.
        spans = wait_until(lambda: (found := read_spans(tmp_path)) and named(found, "/exec$") and found)
    request, acquired, executed = (named(spans, name) for name in ("/exec$", "^sandbox acquire", "^sandbox execute"))
    assert request is not None
    assert acquired is not None
    assert executed is not None

    assert {span["context"]["trace_id"] for span in (request, acquired, executed)} == {request["context"]["trace_id"]}
    assert executed["parent_id"] == request["context"]["span_id"]
    known = {"antwort.container.id": container.id, "antwort.container.tier": "1g"}
    assert executed["attributes"] == {
        **known,
        "antwort.execute.status": "error",
        "antwort.execute.printed": executed["attributes"]["antwort.execute.printed"],
        "antwort.execute.files": 1,
    }
    assert acquired["attributes"] == {**known, "antwort.acquire.status": "ok"}
    assert "secret" not in json.dumps(spans)


def named(spans, pattern) -> Any:
    return next((span for span in spans if re.search(pattern, span["name"])), None)
