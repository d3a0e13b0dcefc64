"""Tenants, quotas and expiry of containers; their logs, metrics and spans."""

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
from fixtures_code_interpreter import LOCAL_FIRST, descendants
from fixtures_container_server import container_server, execute, files, read
from fixtures_server import ROOT, run_server
from fixtures_spans import read_spans
from waiting import wait_until

SHORT = {"containers": {"expires_after": 0.04}}  # not even three seconds


# ── tenants ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_containers_of_another_tenant_are_not_found(env, client, container):
    file = client.containers.files.create(container.id, file=("a.txt", b"owner"))
    upload = client.files.create(file=("u.txt", b"upload"), purpose="user_data")
    absent = "cntr_00000000000000000000000000000000"
    path = f"/v1/containers/{container.id}"
    with env.server.client(env.server.keys["other_tenant"]) as other_client, env.http("other_tenant") as http:
        for attempt in (
            other_client.containers.retrieve,
            other_client.containers.delete,
            other_client.containers.files.list,
            lambda name: other_client.containers.files.create(name, file=("b.txt", b"other")),
            lambda name: other_client.containers.files.retrieve(file.id, container_id=name),
            lambda name: other_client.containers.files.delete(file.id, container_id=name),
            lambda name: read(other_client, name, file.id),
            lambda name: execute(other_client, name, "open('a.txt').read()"),
        ):
            with pytest.raises(openai.NotFoundError) as refused:
                attempt(container.id)
            with pytest.raises(openai.NotFoundError) as missing:
                attempt(absent)
            assert refused.value.message.replace(container.id, "") == missing.value.message.replace(absent, "")
        assert http.get(f"{path}/archive").status_code == 404
        assert http.put(f"{path}/archive", content=b"").status_code == 404
        with pytest.raises(openai.BadRequestError):
            other_client.containers.create(name="x", file_ids=[upload.id])
        assert other_client.containers.list().data == []

        own = other_client.containers.create(name="x")
        with pytest.raises(openai.NotFoundError):
            read(other_client, own.id, file.id)  # a file of one tenant, through a container of another
        with pytest.raises(openai.BadRequestError):
            other_client.containers.files.create(own.id, file_id=upload.id)
        other_client.containers.delete(own.id)
    assert read(client, container.id, file.id) == b"owner"
    assert set(files(client, container.id)) == {"/mnt/data/a.txt"}


def test_keys_of_one_tenant_share_containers(env, client, container):
    execute(client, container.id, "x = 1")
    with env.server.client(env.server.keys["second_key"]) as second_client:
        assert execute(second_client, container.id, "x + 1")["result"] == "2"


# ── quotas ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def quota_client(env):
    """A client of a tenant whose containers are deleted afterwards: only these tests fill its quotas."""
    with env.server.client(env.server.keys["quota_tenant"]) as sdk:
        yield sdk
        for container in sdk.containers.list(limit=100):
            sdk.containers.delete(container.id)


def exceeded_quota(error) -> str:
    """The exceeded quota of a 429, which the SDK must not retry."""
    raised = error.value
    assert (raised.status_code, raised.code, raised.type) == (429, "insufficient_quota", "insufficient_quota")
    assert raised.response.headers["x-should-retry"] == "false"
    return raised.message.partition("quota of ")[2].partition(":")[0]


def test_the_container_quota(quota_client):
    made = [quota_client.containers.create(name="x").id for _ in range(6)]
    with pytest.raises(openai.RateLimitError) as error:
        quota_client.containers.create(name="one too many")

    assert exceeded_quota(error) == "containers"
    quota_client.containers.delete(made[0])
    assert quota_client.containers.create(name="x").status == "running"


def test_the_container_quota_under_concurrency(env, quota_client):
    def create(_):
        with env.server.client(env.server.keys["quota_tenant"]) as sdk, suppress(openai.RateLimitError):
            return sdk.containers.create(name="x").id

    with ThreadPoolExecutor(12) as threads:
        made = [one for one in threads.map(create, range(12)) if one]
    assert len(made) == len(quota_client.containers.list().data) == 6


def test_the_memory_quota(quota_client):
    quota_client.containers.create(name="x", memory_limit="4g")
    with pytest.raises(openai.RateLimitError) as error:
        quota_client.containers.create(name="x", memory_limit="16g")
    assert exceeded_quota(error) == "memory"
    quota_client.containers.create(name="x", memory_limit="4g")
    with pytest.raises(openai.RateLimitError):
        quota_client.containers.create(name="x")


def test_the_disk_quota(env, quota_client):
    one, other = quota_client.containers.create(name="x"), quota_client.containers.create(name="y")
    first = quota_client.containers.files.create(one.id, file=("a", b"x" * 5_000_000))
    large = quota_client.files.create(file=("large", b"x" * 5_000_000), purpose="user_data")
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        member = tarfile.TarInfo("b")
        member.size = 5_000_000
        archive.addfile(member, io.BytesIO(b"x" * 5_000_000))

    for attempt in (
        lambda: quota_client.containers.files.create(other.id, file=("b", b"x" * 5_000_000)),
        lambda: quota_client.containers.files.create(other.id, file_id=large.id),
        lambda: quota_client.containers.create(name="z", file_ids=[large.id]),
    ):
        with pytest.raises(openai.RateLimitError) as error:
            attempt()
        assert exceeded_quota(error) == "disk"
    with env.http("quota_tenant") as http:
        answer = http.put(f"/v1/containers/{other.id}/archive", content=whole.getvalue())
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "insufficient_quota")

    wait_until(lambda: files(quota_client, other.id) == {})
    assert len(quota_client.containers.list().data) == 2
    quota_client.containers.files.delete(first.id, container_id=one.id)
    assert quota_client.containers.files.create(other.id, file=("b", b"x" * 5_000_000)).bytes == 5_000_000


def test_code_runs_again_after_files_are_deleted(quota_client):
    container = quota_client.containers.create(name="x")
    ran = execute(quota_client, container.id, "open('a', 'wb').write(bytes(9_000_000))")
    with pytest.raises(openai.RateLimitError) as error:
        execute(quota_client, container.id, "1")

    assert exceeded_quota(error) == "disk"
    quota_client.containers.files.delete(ran["files"][0]["id"], container_id=container.id)
    assert execute(quota_client, container.id, "1")["result"] == "1"


def test_a_full_container_is_reported_and_stays_usable(client, container):
    code = "for n in range(6):\n    with open(f'/tmp/{n}', 'wb') as file:\n        file.write(bytes(100 << 20))"
    ran = execute(client, container.id, code)

    assert ran["status"] == "error"
    assert "No space left on device" in "".join(one["text"] for one in ran["output"])
    assert execute(client, container.id, "1 + 1")["result"] == "2"


# ── expiry ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module", params=LOCAL_FIRST)
def hasty(request, tmp_path_factory):
    """A server whose containers expire soon."""
    with container_server(request.param, tmp_path_factory.mktemp(request.param), SHORT) as running:
        yield running


def status(client, container_id) -> str:
    """The status by listing, which does not postpone expiry."""
    return next(one.status for one in client.containers.list() if one.id == container_id)


def test_an_idle_container_expires_and_keeps_its_records(hasty):
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


def test_use_prevents_expiry(hasty):
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


def test_expired_containers_do_not_count_towards_the_quota(tmp_path):
    config = {**SHORT, "containers": {**SHORT["containers"], "max_containers": 1}}
    with container_server("local", tmp_path, config) as running, running.server.client() as client:
        container = client.containers.create(name="x")
        with pytest.raises(openai.RateLimitError):
            client.containers.create(name="y")
        wait_until(lambda: status(client, container.id) == "expired")
        assert client.containers.create(name="y").status == "running"


def test_containers_are_forgotten_after_forget_after_days(tmp_path):
    config = {**SHORT, "containers": {**SHORT["containers"], "forget_after": 1e-6}}
    with container_server("local", tmp_path, config) as running, running.server.client() as client:
        client.containers.create(name="x")
        wait_until(lambda: client.containers.list().data == [])
        assert running.rows("SELECT count(*) FROM containers") == [(0,)]


# ── logs, metrics and spans ───────────────────────────────────────────────────────────────────────────────────────────


def test_logs_contain_ids_and_tiers_and_neither_code_nor_data(env, client):
    container = client.containers.create(name="a secret name")
    file = client.containers.files.create(container.id, file=("secret-path.txt", b"secret content"))
    execute(
        client, container.id, "print('secret output')\nopen('secret-made.txt', 'w').write('secret text')\n'secret echo'"
    )
    execute(client, container.id, "raise ValueError('secret failure')")
    read(client, container.id, file.id)
    client.containers.files.delete(file.id, container_id=container.id)
    client.containers.delete(container.id)
    lines = [json.loads(line) for line in env.server.read_log().splitlines() if container.id in line]

    assert "secret" not in env.server.read_log()
    assert [line["action"].removeprefix("container.") for line in lines if line["event"] == "audit"] == [
        *("create", "acquire", "file.create", "execute", "execute", "file.delete", "delete")
    ]
    assert {line["tier"] for line in lines if "tier" in line} == {"1g"}
    assert {line["tenant"] for line in lines} == {"a"}
    executed = next(line for line in lines if line.get("action") == "container.execute")
    assert (executed["status"], executed["printed"]) == ("ok", len("secret output\n"))


def test_the_metrics_count_sandboxes_runs_and_bytes(env, client, container):
    before = env.metrics()
    file = client.containers.files.create(container.id, file=("a", b"x" * 1000))
    execute(client, container.id, "1 / 0")
    read(client, container.id, file.id)
    after = env.metrics()

    def grown(name):
        return after.get(name, 0) - before.get(name, 0)

    assert grown("antwort_sandboxes") == 1
    assert grown('antwort_sandbox_seconds_count{status="ok",work="acquire"}') == 1
    assert grown('antwort_sandbox_seconds_count{status="error",work="execute"}') == 1
    assert grown('antwort_container_bytes_total{direction="in"}') == 1000
    assert grown('antwort_container_bytes_total{direction="out"}') == 1000
    client.containers.delete(container.id)
    assert env.metrics()["antwort_sandboxes"] == before["antwort_sandboxes"]
    assert grown('antwort_containers_total{event="created",tier="1g"}') == 0


def test_spans_describe_the_sandbox_without_content(tmp_path):
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
