"""Server process on a real PostgreSQL: stores as on SQLite, survives kills, answers 503 while PostgreSQL is away."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from fixtures_postgres import frozen, postgres_server, schema_url, stoppable_postgres  # noqa: F401 - a fixture
from fixtures_server import Server, run_server
from waiting import wait_until

SLOW = {
    "answers": [
        {"when": {"text": "slowly"}, "reply": [{"text": "a "}, {"delay": 0.3}, {"text": "b "}, {"delay": 0.3}]},
        {"reply": [{"text": "You said: <<text>>"}]},
    ]
}


@pytest.fixture
def server(postgres_server, tmp_path) -> Iterator[Server]:  # noqa: F811 - a fixture
    config = {"storage": {"url": schema_url(postgres_server, tmp_path), "blobs": ".antwort/blobs"}}
    with run_server(tmp_path, config, script=SLOW) as server:
        yield server


def test_responses_conversations_and_files_are_stored(server):
    client = server.client()
    first = client.responses.create(model="scripted", input="one")
    second = client.responses.create(model="scripted", input="two", previous_response_id=first.id)
    assert [item.content[0].text for item in client.responses.input_items.list(second.id).data] == ["two"]

    conversation = client.conversations.create(items=[{"role": "user", "content": "zero"}])
    client.responses.create(model="scripted", input="three", conversation=conversation.id)
    texts = [item.content[0].text for item in client.conversations.items.list(conversation.id, order="asc").data]
    assert texts == ["zero", "three", "You said: three"]

    file = client.files.create(file=("a.txt", b"content"), purpose="user_data")
    assert client.files.content(file.id).read() == b"content"
    client.files.delete(file.id)
    client.responses.delete(first.id)
    with server.http() as http:
        assert http.get(f"/v1/responses/{first.id}").status_code == 404
        assert http.get("/readyz").status_code == 200


def test_the_banner_and_the_log_do_not_show_the_password(postgres_server, tmp_path):  # noqa: F811 - a fixture
    url = schema_url(postgres_server, tmp_path)
    with psycopg.connect(url) as connection:
        user, password = connection.info.user, connection.info.password
    if not password:  # the server trusts local users
        password = "hunter2"
        url = url.replace("@", f":{password}@", 1) if "@" in url else url.replace("://", f"://{user}:{password}@", 1)
    with run_server(tmp_path, {"storage": {"url": url}}) as server:
        assert password not in server.banner + server.read_log()


def test_a_killed_server_resumes_background_responses_and_loses_nothing(server):
    client = server.client()
    done = client.responses.create(model="scripted", input="before")
    background = client.responses.create(model="scripted", input="slowly", background=True)
    server.kill()
    server.start()
    client = server.client()
    assert client.responses.retrieve(done.id).output_text == "You said: before"
    ended = wait_until(lambda: (found := client.responses.retrieve(background.id)).status == "completed" and found)
    assert ended.output_text == "a b "


@pytest.mark.long
def test_a_postgres_that_is_frozen_is_a_503_and_the_server_recovers(tmp_path):
    with (
        stoppable_postgres() as (url, pid),
        run_server(tmp_path, {"storage": {"url": url}}) as server,
        server.http() as http,
    ):
        before = http.post("/v1/responses", json={"model": "scripted", "input": "before"}).json()
        with frozen(pid):
            refused = http.post("/v1/responses", json={"model": "scripted", "input": "during"})
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            assert http.get("/healthz").status_code == 200
            assert http.get("/readyz").status_code == 503
        wait_until(lambda: http.get("/readyz").status_code == 200)
        assert http.get(f"/v1/responses/{before['id']}").json()["status"] == "completed"
        after = http.post("/v1/responses", json={"model": "scripted", "input": "after"})
        assert after.json()["status"] == "completed"


def test_a_restarted_postgres_costs_no_response(postgres_server, server):  # noqa: F811 - a fixture
    """Connections that the server has closed are replaced before a request fails."""
    client = server.client()
    ids = [client.responses.create(model="scripted", input=f"{n}").id for n in range(4)]
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'antwort' AND pid <> pg_backend_pid()"
        )
    ids += [client.responses.create(model="scripted", input=f"{n}").id for n in range(4)]
    assert [client.responses.retrieve(one).status for one in ids] == ["completed"] * 8


def test_a_postgres_that_does_not_exist_is_a_start_up_error(tmp_path):
    config = {"storage": {"url": "postgresql://user:hunter2@127.0.0.1:9/db"}}
    with pytest.raises(AssertionError, match="did not start"), run_server(tmp_path, config):
        pass
    log = (tmp_path / "log").read_text()
    assert "Fix that, or change `storage`, and start again." in log
    assert "hunter2" not in log
