"""The whole application in one event loop: every endpoint, without a blocking call."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_echo_provider import EchoProvider
from fixtures_in_process_server import multipart_body, run_in_process_server

from antwort.auth import KeyFile
from antwort.config import ConfigError, parse
from antwort.http.app import open_authenticator
from antwort.tools import ProviderCollision

pytestmark = pytest.mark.anyio

SEARCH = {"type": "file_search", "vector_store_ids": ["vs_1"]}
NO_CODE = {"providers": {"code_interpreter": {"enabled": False}, "mcp": {"enabled": False}}}


async def test_no_endpoint_blocks_the_event_loop(server):
    http = server.http
    created = (await http.post("/v1/responses", json={"input": "hello"})).json()
    streamed = await http.post("/v1/responses", json={"input": "hello", "stream": True, "tools": [SEARCH]})
    background = (await http.post("/v1/responses", json={"input": "hello", "background": True})).json()
    followed = await http.get(f"/v1/responses/{background['id']}", params={"stream": True})
    conversation = (await http.post("/v1/conversations", json={"items": [{"role": "user", "content": "x"}]})).json()
    headers = {"content-type": "multipart/form-data; boundary=b"}
    large = multipart_body(("file", b"x" * 3_000_000, "a.bin"), ("purpose", b"user_data"))
    uploaded = (await http.post("/v1/files", content=large, headers=headers)).json()
    answers = [
        await http.get(f"/v1/responses/{created['id']}"),
        await http.get(f"/v1/responses/{created['id']}/input_items"),
        await http.post(f"/v1/responses/{background['id']}/cancel"),
        await http.post("/v1/responses/input_tokens", json={"input": "hello"}),
        await http.post("/v1/responses", json={"input": "hello", "previous_response_id": created["id"]}),
        await http.post("/v1/responses", json={"input": "hello", "conversation": conversation["id"]}),
        await http.get(f"/v1/conversations/{conversation['id']}/items"),
        await http.get(f"/v1/files/{uploaded['id']}"),
        await http.get(f"/v1/files/{uploaded['id']}/content"),
        await http.get("/v1/files"),
        await http.delete(f"/v1/files/{uploaded['id']}"),
        await http.delete(f"/v1/conversations/{conversation['id']}"),
        await http.delete(f"/v1/responses/{created['id']}"),
        *[await http.get(path) for path in ("/v1/models", "/healthz", "/readyz", "/metrics", "/openapi.json")],
    ]

    assert [answer.status_code for answer in answers] == [200] * len(answers)
    assert streamed.text.count("event: response.completed") == 1
    assert followed.text.count("event: response.completed") == 1
    assert uploaded["bytes"] == 3_000_000


async def test_a_revoked_key_is_rejected_while_the_server_runs(tmp_path):
    file = KeyFile(tmp_path / "keys.json")
    key, secret = file.create("key", "a")
    async with run_in_process_server(tmp_path, {"auth": {"keys_file": str(tmp_path / "keys.json")}}) as (
        services,
        http,
    ):
        headers = {"authorization": f"Bearer {secret}"}
        assert (await http.get("/v1/models", headers=headers)).status_code == 200
        services.authenticator.replace([])
        assert (await http.get("/v1/models", headers=headers)).status_code == 401
    assert key.tenant == "a"


async def test_a_response_with_store_false_is_not_stored(server):
    answer = await server.http.post("/v1/responses", json={"input": "hello", "store": False})

    assert (await server.http.get(f"/v1/responses/{answer.json()['id']}")).status_code == 404


async def test_provider_metrics_are_exposed(tmp_path):
    async with run_in_process_server(tmp_path, NO_CODE) as (_, http):
        await http.post("/v1/responses", json={"input": "hello", "tools": [SEARCH]})

        assert "echo_prepared_total 1.0" in (await http.get("/metrics")).text


async def test_a_provider_collision_fails_the_start_and_releases_the_store(tmp_path):
    class Other(EchoProvider):
        @property
        def name(self) -> str:
            return "other"

    with pytest.raises(ProviderCollision, match="file_search"):
        async with run_in_process_server(tmp_path, NO_CODE, extra_providers=[Other()]):
            pass
    async with run_in_process_server(tmp_path, NO_CODE) as (_, http):  # the store lock is released
        assert (await http.get("/readyz")).status_code == 200


def test_without_keys_only_a_loopback_host_is_allowed():
    with pytest.raises(ConfigError, match="antwort keys create"):
        open_authenticator(parse(json.dumps({"server": {"host": "0.0.0.0"}}), {}))  # noqa: S104 - the test expects a rejection
    assert not open_authenticator(parse("", {})).requires_key


def test_a_missing_key_file_is_an_error(tmp_path: Path):
    with pytest.raises(Exception, match="keys"):
        open_authenticator(parse(json.dumps({"auth": {"keys_file": str(tmp_path / "none.json")}}), {}))


async def test_rate_limits_apply_without_keys(tmp_path):
    async with run_in_process_server(tmp_path, {"auth": {"requests_per_minute": 1}}) as (_, http):
        answers = [await http.get("/v1/models") for _ in range(2)]

    assert [answer.status_code for answer in answers] == [200, 429]
    assert answers[0].headers["x-ratelimit-limit-requests"] == "1"


async def test_a_resumed_response_counts_towards_limits_and_metrics(tmp_path):
    config = {"auth": {"concurrent_responses": 1}, "providers": {"code_interpreter": {"enabled": False}}}
    async with run_in_process_server(tmp_path, config) as (_, http):
        background = (await http.post("/v1/responses", json={"input": "forever", "background": True})).json()
    async with run_in_process_server(tmp_path, config) as (_, http):
        second = await http.post("/v1/responses", json={"input": "hello"})
        metrics = (await http.get("/metrics")).text
        await http.post(f"/v1/responses/{background['id']}/cancel")
        third = await http.post("/v1/responses", json={"input": "hello"})

    assert (second.status_code, third.status_code) == (429, 200)
    assert "antwort_responses_running 1.0" in metrics
