"""Containers on several real servers with one Postgres: operations from each replica, races, and killed replicas."""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count

import httpx2
import openai
import pytest
from fixtures_code_interpreter import calls_of, logs_of, metric, run
from fixtures_container_replicas import audit_lines, run_container_replicas
from fixtures_container_server import execute, files, read
from fixtures_replicas import replica_id
from fixtures_server import create_key, run_server
from waiting import wait_until

from antwort.containers.replicas.calls import CALLS_PATH, CallTokens, DeleteFileCall, ReadFilesCall, encode_call
from antwort.engine.stores import Owner, SandboxRef
from antwort.sealing import Sealer, SealingKeys

pytestmark = pytest.mark.long

FOREVER = "print('begun', flush=True)\nwhile True: pass"
SOON = {"expires_after": 0.1, "max_containers": 2}
"""Containers expire after 6 s; those of another replica count as idle after 4.5 s."""


@pytest.fixture(scope="module")
def shared(postgres_server, tmp_path_factory):
    """Two replicas that no test stops."""
    config = {"server": {"keep_alive": 0.2}, "containers": {"max_disk": 8_000_000}}
    with run_container_replicas(postgres_server, tmp_path_factory.mktemp("shared"), config) as replicas:
        yield replicas


@pytest.fixture
def two(shared):
    """Their clients. Afterwards no sandbox is left."""
    first, second = shared.servers
    with first.client() as one, second.client() as other:
        yield one, other
        for container in one.containers.list(limit=100):
            one.containers.delete(container.id)
        wait_until(lambda: sum(metric(server, "antwort_sandboxes") for server in shared.servers) == 0)


@pytest.fixture
def pair(postgres_server, tmp_path):
    """Two replicas for a test that stops one of them."""
    with run_container_replicas(postgres_server, tmp_path, {"server": {"keep_alive": 0.2}}) as replicas:
        yield replicas.servers


@contextmanager
def running_code(server, container_id, code=FOREVER):
    """The events of an execution, whose first output has arrived."""
    body = {"code": code, "stream": True}
    with server.http() as http, http.stream("POST", f"/v1/containers/{container_id}/exec", json=body) as stream:
        lines = (json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: "))
        assert next(lines)["text"] == "begun\n"
        yield lines


# ── every replica ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_two_first_uses_at_once_share_one_sandbox(shared, two):
    with ThreadPoolExecutor(8) as threads:
        for _ in range(3):
            container = two[0].containers.create(name="x")
            code = "seen = globals().get('seen', 0) + 1\nseen"
            ran = [threads.submit(execute, two[n % 2], container.id, code) for n in range(8)]
            assert sorted(int(one.result()["result"]) for one in ran) == [*range(1, 9)]
            assert not any(one.result()["replaced"] for one in ran)
    assert sum(metric(server, "antwort_sandboxes") for server in shared.servers) == 3


@pytest.mark.long
def test_an_upload_waits_for_the_lock_of_another_replica(postgres_server, tmp_path):
    with run_container_replicas(postgres_server, tmp_path, {"server": {"body_timeout": 1}}) as replicas:
        first, second = replicas.servers
        with first.client() as one, second.client() as other:
            container = one.containers.create(name="x")
            code = "import time\nprint('begun', flush=True)\ntime.sleep(3)"
            with running_code(first, container.id, code):
                made = other.containers.files.create(container.id, file=("a", b"x" * 3_000_000))
            assert made.bytes == 3_000_000
            assert len(read(other, container.id, made.id)) == 3_000_000


def test_a_disconnect_stops_code_on_another_replica(shared, two):
    container = two[0].containers.create(name="x")
    execute(two[0], container.id, "1")
    with running_code(shared.servers[1], container.id):
        pass
    assert execute(two[0], container.id, "'next'")["result"] == "'next'"


def test_deleting_a_container_kills_its_code_on_another_replica(shared, two):
    container = two[0].containers.create(name="x")
    with running_code(shared.servers[0], container.id) as lines:
        two[1].containers.delete(container.id)
        last = list(lines)[-1]
    assert (last["type"], last["error"]["code"]) == ("error", "not_found")
    assert metric(shared.servers[0], "antwort_sandboxes") == 0


def test_errors_are_those_of_the_operation(two):
    container = two[0].containers.create(name="x")
    file = two[0].containers.files.create(container.id, file=("a", b"x"))
    execute(two[0], container.id, "import os; os.remove('a')")
    with pytest.raises(openai.NotFoundError, match=f"File {file.id} not found on container {container.id}"):
        read(two[1], container.id, file.id)
    with pytest.raises(openai.BadRequestError) as refused:
        two[1].containers.files.create(container.id, file=("x/" * 2 + "y" * 256, b"x"))
    assert refused.value.param == "file"
    ran = execute(two[1], container.id, "import os; os._exit(3)")
    assert (ran["status"], bool(ran["lost"])) == ("ended", True)
    assert "antwort:lost" in two[0].containers.retrieve(container.id).to_dict()
    assert execute(two[1], container.id, "1")["replaced"] is True
    assert execute(two[0], container.id, "1")["replaced"] is False


def test_uploads_to_several_replicas_share_one_quota(shared, two):
    made = [two[0].containers.create(name="x").id for _ in range(6)]
    for number, container in enumerate(made):
        execute(two[number % 2], container, "1")

    def upload(number):
        try:
            two[number % 2].containers.files.create(made[number], file=("a", bytes(3_000_000)))
        except openai.RateLimitError as error:
            return error.code
        return None

    with ThreadPoolExecutor(6) as threads:
        outcomes = list(threads.map(upload, range(6)))
    stored = sum(file.bytes for container in made for file in files(two[0], container).values())
    assert set(outcomes) <= {None, "insufficient_quota"}
    assert stored == 3_000_000 * outcomes.count(None) <= 8_000_000
    assert "insufficient_quota" in outcomes
    two[0].containers.delete(made[outcomes.index(None)])
    free = made[outcomes.index("insufficient_quota")]
    two[1].containers.files.create(free, file=("b", bytes(2_000_000)))  # no reservation is left


def test_a_call_between_replicas_counts_in_no_rate_limit(postgres_server, tmp_path):
    key = create_key(tmp_path, "limited", "--requests-per-minute", "600")
    with run_container_replicas(
        postgres_server, tmp_path, {"auth": {"keys_file": str(tmp_path / "keys.json")}}
    ) as replicas:
        first, second = replicas.servers
        with first.client(key) as one, second.http(headers={"authorization": f"Bearer {key}"}) as http:
            container = one.containers.create(name="x")
            execute(one, container.id, "1")
            left = []
            for _ in range(3):
                answer = http.post(f"/v1/containers/{container.id}/exec", json={"code": "1"})
                left.append(int(answer.headers["x-ratelimit-remaining-requests"]))
        assert left[0] - left[2] <= 2


# ── a replica dies ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_holder_is_killed_during_an_execution(pair):
    first, second = pair
    with first.client() as one, second.client() as other:
        container = one.containers.create(name="x")
        one.containers.files.create(container.id, file=("a", b"x"))
        with running_code(second, container.id) as lines:
            first.kill()
            last = list(lines)[-1]
        assert (last["type"], last["error"]["code"]) == ("error", "container_lost")
        found = other.containers.retrieve(container.id).to_dict()
        assert (found["status"], found["antwort:lost"].partition(".")[0]) == (
            "running",
            "The server that ran it has stopped",
        )
        assert files(other, container.id) == {}
        ran = execute(other, container.id, "import os; os.listdir()")
        assert (ran["replaced"], ran["result"]) == (True, "[]")
    assert audit_lines([second], "container.lost", container.id) == 1
    assert audit_lines([second], "container.execute", container.id) == 1  # the killed execution was not repeated


@pytest.mark.long
def test_the_holder_is_killed_during_a_tool_call(pair):
    first, second = pair
    with first.client() as one, second.client() as other:
        container = one.containers.create(name="x")
        execute(one, container.id, "1")
        tools = [{"type": "code_interpreter", "container": container.id}]
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(run, other, "while True: pass", tools=tools)
            wait_until(lambda: audit_lines([second], "response.create", "resp_"))
            wait_until(lambda: metric(second, "antwort_responses_running") == 1)
            time.sleep(0.5)  # the call is sent: nothing tells when
            first.kill()
            response = running.result(timeout=60)
        (call,) = calls_of(response)
        assert (response.status, call.status) == ("completed", "failed")
        assert "The server that ran it has stopped." in logs_of(call)
        assert logs_of(calls_of(run(other, "6 * 7", tools=tools))[0]).endswith("42")


@pytest.mark.long
def test_the_holder_is_killed_during_an_upload_and_a_download(pair):
    first, second = pair
    with first.client() as one, second.client() as other:
        container = one.containers.create(name="x")
        execute(one, container.id, "open('large', 'wb').write(bytes(256 << 20))")
        (large,) = files(one, container.id).values()
        sent = count()

        def endless():
            head = '--b\r\ncontent-disposition: form-data; name="file"; filename="b"\r\n\r\n'
            yield head.encode()
            while True:
                if next(sent) == 30:
                    first.kill()
                yield bytes(1 << 20)

        path = f"/v1/containers/{container.id}/files"
        with (
            second.http() as http,
            http.stream("GET", f"{path}/{large.id}/content") as download,
            second.http() as uploading,
        ):
            received = download.iter_raw()
            next(received)
            headers = {"content-type": "multipart/form-data; boundary=b"}
            try:
                answer = uploading.post(path, content=endless(), headers=headers)
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "container_lost")
            except httpx2.WriteError:
                pass  # the answer came before the end of the body
            with pytest.raises(httpx2.TransportError):
                list(received)
        assert files(other, container.id) == {}
        made = other.containers.files.create(container.id, file=("b", b"again"))
        assert read(other, container.id, made.id) == b"again"


@pytest.mark.long
def test_a_request_to_a_container_of_a_killed_replica_continues_in_a_new_sandbox(pair):
    first, second = pair
    with first.client() as one, second.client() as other:
        container = one.containers.create(name="x")
        execute(one, container.id, "1")
        first.kill()
        ran = execute(other, container.id, "1 + 1")  # before the membership knows
        assert (ran["replaced"], ran["result"]) == (True, "2")
        first.start()
        with first.client() as again:
            assert execute(again, container.id, "1 + 2")["result"] == "3"
            assert execute(again, container.id, "1")["replaced"] is False


@pytest.mark.long
def test_a_stopped_replica_leaves_its_containers_at_once(pair):
    first, second = pair
    with first.client() as one, second.client() as other:
        container = one.containers.create(name="x")
        execute(one, container.id, "1")
        assert first.stop() == 0
        ran = execute(other, container.id, "1 + 1")
        assert (ran["replaced"], ran["result"]) == (True, "2")


@pytest.mark.long
def test_a_frozen_replica_does_not_disturb_its_successor(pair):
    first, second = pair
    with first.client() as one, second.client() as other:
        container, deleted = one.containers.create(name="x"), one.containers.create(name="y")
        for held in (container, deleted):
            execute(one, held.id, "1")
        with running_code(second, container.id, "print('begun', flush=True)\nwhile True: open('old', 'w')") as lines:
            os.kill(first.process.pid, signal.SIGSTOP)
            try:
                last = list(lines)[-1]
                assert (last["type"], last["error"]["code"]) == ("error", "container_lost")
                assert execute(other, container.id, "x = 'new'\nopen('new', 'w')\nx")["replaced"] is True
                other.containers.delete(deleted.id)
            finally:
                os.kill(first.process.pid, signal.SIGCONT)
        wait_until(lambda: metric(first, "antwort_sandboxes") == 0)
        assert execute(one, container.id, "x")["result"] == "'new'"
        assert [*files(one, container.id)] == [*files(other, container.id)] == ["/mnt/data/new"]
        assert metric(second, "antwort_sandboxes") == 1


# ── a replica cannot be reached ──────────────────────────────────────────────────────────────────────────────────────


def test_a_replica_without_url_keeps_its_containers_to_itself(postgres_server, tmp_path):
    with run_container_replicas(postgres_server, tmp_path, {"without_url": [0]}) as replicas:
        first, second = replicas.servers
        with first.client() as one, second.client() as other:
            container = one.containers.create(name="x")
            execute(one, container.id, "1")
            for attempt in (
                lambda: execute(other, container.id, "1"),
                lambda: other.containers.files.create(container.id, file=("a", b"x")),
            ):
                with pytest.raises(openai.InternalServerError) as error:
                    attempt()
                assert (error.value.status_code, error.value.code) == (503, "unavailable")
                assert "server.replica_url" in error.value.message
                assert replica_id(first) in error.value.message
                assert int(error.value.response.headers["retry-after"]) > 0
            assert other.containers.retrieve(container.id).status == "running"
            assert files(other, container.id) == {}
            tools = [{"type": "code_interpreter", "container": container.id}]
            response = run(other, "1 + 1", tools=tools)
            assert (response.status, calls_of(response)[0].status) == ("completed", "failed")
            assert "server.replica_url" in logs_of(calls_of(response)[0])
            assert execute(one, container.id, "1")["replaced"] is False
            with first.http() as http:  # not even served there
                assert http.post(CALLS_PATH + container.id).status_code == 404
            other.containers.delete(container.id)  # the holder notices it
            wait_until(lambda: metric(first, "antwort_sandboxes") == 0)


# ── expiry and eviction ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.long
def test_expiry_and_eviction_across_replicas(postgres_server, tmp_path):
    with run_container_replicas(postgres_server, tmp_path, {"containers": SOON}) as replicas:
        first, second = replicas.servers
        with first.client() as one, second.client() as other, ThreadPoolExecutor(2) as threads:
            idle = one.containers.create(name="x")
            execute(one, idle.id, "1")
            in_use = threads.submit(run, other, "import time; time.sleep(9); 'used'")
            wait_until(lambda: metric(first, "antwort_sandboxes") == 0)  # expired, whichever replica did that
            assert one.containers.retrieve(idle.id).status == "expired"
            assert "used" in logs_of(calls_of(in_use.result())[0])

            using = [threads.submit(run, other, f"import time; time.sleep(4); {n}") for n in range(2)]
            wait_until(lambda: metric(second, "antwort_sandboxes") >= 2)
            evicting = run(one, "'evicted'")  # waits until the responses of the other replica do not use them
            assert all(calls_of(future.result())[0].status == "completed" for future in using)
            assert "evicted" in logs_of(calls_of(evicting)[0])
            wait_until(lambda: sum(metric(server, "antwort_sandboxes") for server in replicas.servers) == 0)


@pytest.mark.parametrize("seconds", [-40, 40])
def test_a_container_in_use_is_not_evicted_where_clocks_differ(postgres_server, tmp_path, seconds):
    config = {"containers": {"max_containers": 1}}
    with run_container_replicas(postgres_server, tmp_path, config, clocks={0: seconds}) as replicas:
        first, second = replicas.servers
        with first.client() as one, second.client() as other, ThreadPoolExecutor(1) as threads:
            wait_until(lambda: metric(first, "antwort_replicas") == 2)
            using = threads.submit(run, one, "import time; time.sleep(4); 'used'")
            wait_until(lambda: metric(first, "antwort_sandboxes") == 1)
            evicting = run(other, "'evicted'")  # waits until the other replica does not use it any more
            assert "used" in logs_of(calls_of(using.result())[0])
            assert "evicted" in logs_of(calls_of(evicting)[0])


# ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_only_replicas_may_call(shared, two):
    first, second = shared.servers
    container = two[0].containers.create(name="x")
    made = two[0].containers.files.create(container.id, file=("a", b"secret"))
    path, owner = CALLS_PATH + container.id, Owner("local", "none")
    sealer = Sealer(SealingKeys.read(shared.directory.parent / "sealing.json"))
    sandbox = _sandbox(first, container.id)
    holder = SandboxRef(replica_id(first), sandbox)
    call = encode_call(ReadFilesCall(made.id))

    def ask(token, body=call, server=first, headers=None):
        with server.http(headers={"authorization": f"Replica {token}", **(headers or {})}) as http:
            return http.post(path, content=body)

    def issue(*, target=holder, at=0.0, sealed_with=sealer, of=owner, container_id=container.id):
        tokens = CallTokens(sealed_with, "rep_test", lambda: time.time() + at)
        return tokens.issue(of, container_id, target, call)

    good = issue()
    assert (ask(good).status_code, ask(issue()).content) == (200, b"secret")
    assert ask(good).status_code == 401, "a token is accepted once"
    other_keys = Sealer(SealingKeys.open_or_create(shared.directory / "other.json"))
    refused = {
        "none": ask("none"),
        "forged": ask(issue(sealed_with=other_keys)),
        "expired": ask(issue(at=-61)),
        "from the future": ask(issue(at=61)),
        "another replica": ask(issue(), server=second),
        "another container": ask(issue(container_id="cntr_other")),
        "other arguments": ask(issue(), encode_call(DeleteFileCall(made.id))),
        "an item of the tenant": ask(sealer.seal("local", "replica-call", b"{}")),
        "headers": ask("none", headers={"antwort-tenant": "local", "x-forwarded-user": "local"}),
        "changed": ask(issue()[:-2] + "AA"),
    }
    assert {name: answer.status_code for name, answer in refused.items()} == dict.fromkeys(refused, 401)
    assert not any(b"secret" in answer.content for answer in refused.values())
    other_tenant = ask(issue(of=Owner("other", "none")))
    assert other_tenant.status_code == 409
    assert b"not found" in other_tenant.content
    moved = ask(issue(target=SandboxRef(replica_id(first), "sess_gone")))
    assert (moved.status_code, moved.json()["kind"]) == (409, "elsewhere")
    with second.http() as http:
        assert CALLS_PATH not in http.get("/openapi.json").text
    assert read(two[1], container.id, made.id) == b"secret"


def test_a_server_that_is_alone_does_not_serve_calls(tmp_path):
    with run_server(tmp_path, {"server": {"replica_url": "http://127.0.0.1:1"}}) as server, server.http() as http:
        assert http.post(CALLS_PATH + "cntr_1").status_code == 404


def _sandbox(server, container_id):
    lines = [json.loads(line) for line in server.read_log().splitlines() if container_id in line]
    return next(line["sandbox"] for line in lines if line.get("action") == "container.acquire")
