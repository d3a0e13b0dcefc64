"""The whole application on one loop: everything that can be asked for, and nothing of it blocks."""

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
NO_CODE = {"providers": {"code_interpreter": {"enabled": False}}}


async def test_nothing_that_can_be_asked_for_blocks_the_loop(stage):
    http = stage.http
    made = (await http.post("/v1/responses", json={"input": "hello"})).json()
    streamed = await http.post("/v1/responses", json={"input": "hello", "stream": True, "tools": [SEARCH]})
    left = (await http.post("/v1/responses", json={"input": "hello", "background": True})).json()
    followed = await http.get(f"/v1/responses/{left['id']}", params={"stream": True})
    begun = (await http.post("/v1/conversations", json={"items": [{"role": "user", "content": "x"}]})).json()
    kind = {"content-type": "multipart/form-data; boundary=b"}
    large = multipart_body(("file", b"x" * 3_000_000, "a.bin"), ("purpose", b"user_data"))
    uploaded = (await http.post("/v1/files", content=large, headers=kind)).json()
    answers = [
        await http.get(f"/v1/responses/{made['id']}"),
        await http.get(f"/v1/responses/{made['id']}/input_items"),
        await http.post(f"/v1/responses/{left['id']}/cancel"),
        await http.post("/v1/responses/input_tokens", json={"input": "hello"}),
        await http.post("/v1/responses", json={"input": "hello", "previous_response_id": made["id"]}),
        await http.post("/v1/responses", json={"input": "hello", "conversation": begun["id"]}),
        await http.get(f"/v1/conversations/{begun['id']}/items"),
        await http.get(f"/v1/files/{uploaded['id']}"),
        await http.get(f"/v1/files/{uploaded['id']}/content"),
        await http.get("/v1/files"),
        await http.delete(f"/v1/files/{uploaded['id']}"),
        await http.delete(f"/v1/conversations/{begun['id']}"),
        await http.delete(f"/v1/responses/{made['id']}"),
        *[await http.get(path) for path in ("/v1/models", "/healthz", "/readyz", "/metrics", "/openapi.json")],
    ]

    assert [answer.status_code for answer in answers] == [200] * len(answers)
    assert streamed.text.count("event: response.completed") == 1
    assert followed.text.count("event: response.completed") == 1
    assert uploaded["bytes"] == 3_000_000


async def test_keys_that_are_revoked_meanwhile_are_seen_without_blocking(tmp_path):
    file = KeyFile(tmp_path / "keys.json")
    key, secret = file.create("ours", "a")
    async with run_in_process_server(tmp_path, {"auth": {"keys_file": str(tmp_path / "keys.json")}}) as (
        services,
        http,
    ):
        headers = {"authorization": f"Bearer {secret}"}
        assert (await http.get("/v1/models", headers=headers)).status_code == 200
        services.authenticator.replace([])
        assert (await http.get("/v1/models", headers=headers)).status_code == 401
    assert key.tenant == "a"


async def test_a_response_that_nobody_asked_to_keep_leaves_nothing(stage):
    answer = await stage.http.post("/v1/responses", json={"input": "hello", "store": False})

    assert (await stage.http.get(f"/v1/responses/{answer.json()['id']}")).status_code == 404


async def test_the_numbers_of_a_provider_are_on_the_page_of_metrics(tmp_path):
    async with run_in_process_server(tmp_path, NO_CODE) as (_, http):
        await http.post("/v1/responses", json={"input": "hello", "tools": [SEARCH]})

        assert "echo_prepared_total 1.0" in (await http.get("/metrics")).text


async def test_two_providers_of_one_tool_stop_the_start_and_leave_nothing_open(tmp_path):
    class Other(EchoProvider):
        @property
        def name(self) -> str:
            return "other"

    with pytest.raises(ProviderCollision, match="file_search"):
        async with run_in_process_server(tmp_path, NO_CODE, extra_providers=[Other()]):
            pass
    async with run_in_process_server(tmp_path, NO_CODE) as (_, http):  # the lock of the store is free again
        assert (await http.get("/readyz")).status_code == 200


def test_without_keys_only_this_machine_is_let_in():
    with pytest.raises(ConfigError, match="antwort keys create"):
        open_authenticator(parse(json.dumps({"server": {"host": "0.0.0.0"}}), {}))  # noqa: S104 - it is refused
    assert not open_authenticator(parse("", {})).requires_key


def test_a_file_of_keys_that_is_not_there_is_an_error_at_once(tmp_path: Path):
    with pytest.raises(Exception, match="keys"):
        open_authenticator(parse(json.dumps({"auth": {"keys_file": str(tmp_path / "none.json")}}), {}))


async def test_limits_hold_without_keys_too(tmp_path):
    async with run_in_process_server(tmp_path, {"auth": {"requests_per_minute": 1}}) as (_, http):
        answers = [await http.get("/v1/models") for _ in range(2)]

    assert [answer.status_code for answer in answers] == [200, 429]
    assert answers[0].headers["x-ratelimit-limit-requests"] == "1"


async def test_what_is_done_again_after_a_start_counts_like_any_other(tmp_path):
    one_at_once = {"auth": {"concurrent_responses": 1}, "providers": {"code_interpreter": {"enabled": False}}}
    async with run_in_process_server(tmp_path, one_at_once) as (_, http):
        left = (await http.post("/v1/responses", json={"input": "forever", "background": True})).json()
    async with run_in_process_server(tmp_path, one_at_once) as (_, http):
        one_too_many = await http.post("/v1/responses", json={"input": "hello"})
        metrics = (await http.get("/metrics")).text
        await http.post(f"/v1/responses/{left['id']}/cancel")
        next_one = await http.post("/v1/responses", json={"input": "hello"})

    assert (one_too_many.status_code, next_one.status_code) == (429, 200)
    assert "antwort_responses_running 1.0" in metrics
