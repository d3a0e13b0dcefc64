"""Several server processes on one PostgreSQL: any of them serves any request, and one that dies loses nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from fixtures_postgres import postgres_server, schema_url  # noqa: F401 - a fixture
from fixtures_replicas import (
    QUICKLY,
    SLOWLY,
    metric,
    owner_of_response,
    replica_config,
    replica_id,
    run_replicas,
    shared_key,
    stopped,
)
from fixtures_server import Server, run_server
from stream_grammar import read_frames
from waiting import wait_until

pytestmark = pytest.mark.long


@pytest.fixture
def pair(postgres_server, tmp_path) -> Iterator[list[Server]]:  # noqa: F811 - a fixture
    with run_replicas(postgres_server, tmp_path) as servers:
        yield servers


def stored_events(server: Server, identifier: str, after: int = -1) -> list[dict]:
    query = {"stream": True, "starting_after": after, "include_obfuscation": False}
    with server.http() as http:
        answer = http.get(f"/v1/responses/{identifier}", params=query, timeout=60)
        assert answer.status_code == 200
    return read_frames(answer.content)


def check_stream_of_one_response(events: list[dict], last: str) -> None:
    """Numbers only grow, and there is one last event, at the end."""
    numbers = [event["sequence_number"] for event in events]
    assert numbers == sorted(set(numbers))
    ends = [event["type"] for event in events if event["type"] in ENDINGS]
    assert ends == [last] == [events[-1]["type"]]


ENDINGS = ("response.completed", "response.incomplete", "response.failed")


def completed(server: Server, identifier: str):
    """The completed response, as this replica sees it."""
    client = server.client()
    ended = wait_until(lambda: (found := client.responses.retrieve(identifier)).status != "in_progress" and found)
    return wait_until(lambda: (found := client.responses.retrieve(identifier)).status == "completed" and found) or ended


def wait_for_events(server: Server, identifier: str, number: int = 3) -> None:
    """Wait until a background response has some stored events."""
    with server.http() as http, http.stream("GET", f"/v1/responses/{identifier}?stream=true") as answer:
        for count, _ in enumerate(answer.iter_lines()):
            if count > 3 * number:
                return


def test_every_object_is_served_by_the_other_replica(pair):
    first, second = (server.client() for server in pair)
    response = first.responses.create(model="scripted", input="one")
    assert second.responses.retrieve(response.id).output_text == "You said: one"
    assert [item.content[0].text for item in second.responses.input_items.list(response.id)] == ["one"]
    chained = second.responses.create(model="scripted", input="two", previous_response_id=response.id)
    assert first.responses.retrieve(chained.id).previous_response_id == response.id

    conversation = first.conversations.create(items=[{"role": "user", "content": "zero"}])
    second.responses.create(model="scripted", input="three", conversation=conversation.id)
    texts = [item.content[0].text for item in first.conversations.items.list(conversation.id, order="asc").data]
    assert texts == ["zero", "three", "You said: three"]

    file = first.files.create(file=("a.txt", b"content" * 1000), purpose="user_data")
    assert second.files.content(file.id).read() == b"content" * 1000
    second.files.delete(file.id)
    second.responses.delete(response.id)
    with pair[0].http() as http:
        assert http.get(f"/v1/files/{file.id}").status_code == 404
        assert http.get(f"/v1/responses/{response.id}").status_code == 404
    with pair[0].http() as here, pair[1].http() as there:  # an item that one replica has sealed, opened by the other
        window = here.post("/v1/responses/compact", json={"model": "scripted", "input": "a long history"}).json()
        opened = there.post("/v1/responses", json={"model": "scripted", "input": window["output"]})
    assert opened.json()["status"] == "completed"


def test_the_start_screen_the_log_and_the_metrics_name_the_replicas(pair):
    for server in pair:
        assert f'"replica": "{replica_id(server)}"' in server.read_log()
        wait_until(lambda one=server: metric(one, "antwort_replicas") == 2)
    assert replica_id(pair[0]) != replica_id(pair[1])
    assert "2 live on this storage" in pair[1].banner


def test_a_background_response_is_followed_on_the_other_replica(pair):
    first, second = pair
    response = first.client().responses.create(model="scripted", input="quickly", background=True)
    with ThreadPoolExecutor() as threads:
        streams = [threads.submit(stored_events, server, response.id) for server in pair]
        here, there = (stream.result() for stream in streams)
    check_stream_of_one_response(there, "response.completed")
    assert here == there
    assert there[-1]["response"]["output"][0]["content"][0]["text"] == QUICKLY
    assert stored_events(second, response.id, there[4]["sequence_number"]) == there[5:]


def test_a_background_response_is_cancelled_on_the_other_replica(pair):
    first, second = pair
    response = first.client().responses.create(model="scripted", input="forever", background=True)
    wait_for_events(first, response.id)
    cancelled = second.client().responses.cancel(response.id)
    assert cancelled.status == "cancelled"
    assert cancelled.output[0].content[0].text == "begun "
    check_stream_of_one_response(stored_events(first, response.id), "response.incomplete")
    wait_until(lambda: metric(first, "antwort_responses_running") == 0)
    assert second.client().responses.cancel(response.id).status == "cancelled"


def test_a_background_response_is_deleted_on_the_other_replica(pair):
    first, second = pair
    response = first.client().responses.create(model="scripted", input="forever", background=True)
    wait_for_events(first, response.id)
    second.client().responses.delete(response.id)
    wait_until(lambda: metric(first, "antwort_responses_running") == 0)
    with first.http() as http:
        assert http.get(f"/v1/responses/{response.id}").status_code == 404


def test_a_killed_replica_is_replaced_within_seconds(pair):
    first, second = pair
    response = first.client().responses.create(model="scripted", input="quickly", background=True)
    foreground = first.client().responses.create(model="scripted", input="forever", stream=True)
    begun = next(iter(foreground)).response.id
    wait_for_events(first, response.id)
    first.kill()
    assert completed(second, response.id).output_text == QUICKLY
    check_stream_of_one_response(stored_events(second, response.id), "response.completed")
    failed = wait_until(lambda: (found := second.client().responses.retrieve(begun)).status == "failed" and found)
    assert failed.error.code == "server_error"
    assert metric(second, "antwort_takeovers_total") == 2
    assert metric(second, "antwort_replicas") == 1
    assert "replica_died" in second.read_log()
    first.start()
    assert completed(first, response.id).output_text == QUICKLY


def test_a_stopped_replica_hands_its_work_over_at_once(postgres_server, pair, tmp_path):  # noqa: F811 - a fixture
    first, second = pair
    response = first.client().responses.create(model="scripted", input="slowly", background=True)
    wait_for_events(first, response.id)
    with ThreadPoolExecutor() as threads:
        follower = threads.submit(stored_events, second, response.id, 5)
        assert first.stop() == 0
        wait_until(lambda: owner_of_response(postgres_server, tmp_path, response.id) == replica_id(second), timeout=4)
        assert completed(second, response.id).output_text == SLOWLY
        events = follower.result()
    check_stream_of_one_response(events, "response.completed")
    assert "replica_died" not in second.read_log()


def test_a_replica_that_was_paused_writes_nothing_after_it_was_replaced(postgres_server, pair, tmp_path):  # noqa: F811 - a fixture
    first, second = pair
    identifiers = [
        first.client().responses.create(model="scripted", input="slowly", background=True).id for _ in range(5)
    ]
    wait_for_events(first, identifiers[-1])
    with stopped(first):
        for identifier in identifiers:
            wait_until(  # one that had ended before the pause stays as it is
                lambda one=identifier: (
                    owner_of_response(postgres_server, tmp_path, one) == replica_id(second)
                    or second.client().responses.retrieve(one).status == "completed"
                )
            )
    wait_until(lambda: "replica_was_taken_for_dead" in first.read_log())
    wait_until(lambda: first.read_log().count("was taken over by another replica") == 5)
    wait_until(lambda: metric(first, "antwort_responses_running") == 0)
    for identifier in identifiers:
        assert completed(second, identifier).output_text == SLOWLY
        check_stream_of_one_response(stored_events(first, identifier), "response.completed")
    assert first.read_log().count("was taken over by another replica") == 5  # once for each
    wait_until(lambda: metric(first, "antwort_replicas") == metric(second, "antwort_replicas") == 2)
    done = first.client().responses.create(model="scripted", input="again")
    assert second.client().responses.retrieve(done.id).output_text == "You said: again"


def test_a_response_of_a_paused_replica_is_cancelled_by_the_one_that_takes_over(pair):
    first, second = pair
    response = first.client().responses.create(model="scripted", input="forever", background=True)
    wait_for_events(first, response.id)
    with stopped(first):
        assert second.client().responses.cancel(response.id).status == "cancelled"
        check_stream_of_one_response(stored_events(second, response.id), "response.incomplete")
    wait_until(lambda: metric(first, "antwort_responses_running") == 0)
    assert second.client().responses.retrieve(response.id).status == "cancelled"
    check_stream_of_one_response(stored_events(first, response.id), "response.incomplete")


def test_a_rate_limit_holds_across_replicas(postgres_server, tmp_path):  # noqa: F811 - a fixture
    key = shared_key(tmp_path, "limited", "--requests-per-minute", "6")
    free = shared_key(tmp_path, "free")
    with run_replicas(postgres_server, tmp_path) as servers:

        def listed(number: int) -> int:
            with servers[number % 2].http(headers={"authorization": f"Bearer {key}"}) as http:
                answer = http.get("/v1/models")
            assert answer.status_code == 200 or int(answer.headers["retry-after"]) >= 1
            return answer.status_code

        with ThreadPoolExecutor(4) as threads:
            statuses = list(threads.map(listed, range(20)))
        assert statuses.count(200) + statuses.count(429) == 20
        assert 6 <= statuses.count(200) <= 9  # a tenth of a minute is one more
        for server in servers:
            server.client(free).models.list()


def test_a_concurrency_limit_holds_across_replicas_and_ends_with_a_killed_one(postgres_server, tmp_path):  # noqa: F811 - a fixture
    key = shared_key(tmp_path, "limited", "--concurrent-responses", "2")
    with run_replicas(postgres_server, tmp_path) as (first, second):
        here, there = first.client(key), second.client(key)
        running = [
            client.responses.create(model="scripted", input="forever", background=True) for client in (here, there)
        ]
        for client in (here, there):
            with pytest.raises(openai.RateLimitError, match="2 responses"):
                client.responses.create(model="scripted", input="one too many")
        there.responses.cancel(running[1].id)
        for number in range(10):  # one after the other, on alternating replicas
            (here, there)[number % 2].responses.create(model="scripted", input="one at a time")
        there.responses.cancel(running[0].id)
        stream = here.responses.create(model="scripted", input="forever", stream=True)
        next(iter(stream))
        blocked = there.responses.create(model="scripted", input="forever", background=True)
        first.kill()
        wait_until(lambda: "replica_died" in second.read_log())
        assert there.responses.create(model="scripted", input="free again").status == "completed"
        there.responses.cancel(blocked.id)


def test_replicas_with_other_keys_or_files_are_a_start_up_error(postgres_server, tmp_path):  # noqa: F811 - a fixture
    with run_replicas(postgres_server, tmp_path, 1) as servers:
        common = servers[0]
        url = schema_url(postgres_server, tmp_path)
        for name, config, setting in (
            ("blobs", {"storage": {"url": url, "blobs": "elsewhere/blobs"}}, "storage.blobs"),
            (
                "keys",
                {**replica_config(url, tmp_path), "compaction": {"keys_file": "own-keys.json"}},
                "compaction.keys_file",
            ),
        ):
            with pytest.raises(AssertionError, match="did not start"), run_server(tmp_path / name, config):
                pass
            assert setting in (tmp_path / name / "log").read_text()
        assert common.client().responses.create(model="scripted", input="go on").status == "completed"
        wait_until(lambda: metric(common, "antwort_replicas") == 1)


def test_a_container_expires_once(postgres_server, tmp_path):  # noqa: F811 - a fixture
    """The sweep is a job of all replicas: each expired container has one audit line."""
    config = {
        "containers": {"expires_after": 0.02},
        "providers": {"code_interpreter": {"enabled": True}},
    }
    with run_replicas(postgres_server, tmp_path, **config) as servers:
        clients = [server.client() for server in servers]
        created = [clients[number % 2].containers.create(name="c").id for number in range(6)]
        with servers[0].http() as http:  # a list does not postpone expiry
            wait_until(lambda: all(one["status"] == "expired" for one in http.get("/v1/containers").json()["data"]))

        def expirations() -> list[str]:
            lines = [line for server in servers for line in server.read_log().splitlines()]
            return sorted(json.loads(line)["object_id"] for line in lines if "container.expire" in line)

        wait_until(lambda: len(expirations()) >= 6)
        assert expirations() == sorted(created)
