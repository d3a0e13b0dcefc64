"""API keys, rate limits and body limits on the Messages wire: accepted headers, and errors in its shape."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest
from fixtures_server import create_key, run_server

BODY = {"model": "scripted", "max_tokens": 100, "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    directory = tmp_path_factory.mktemp("keys")
    model = {"kind": "scripted", "script": "script.yaml"}
    config: dict[str, Any] = {
        "auth": {"keys_file": "keys.json"},
        "server": {"max_body": 10_000},
        "models": {"default": "other", "other": model, "scripted": model},
    }
    keys = {
        "mine": create_key(directory, "mine"),
        "other": create_key(directory, "other", "--tenant", "other"),
        "limited": create_key(directory, "limited", "--requests-per-minute", "1"),
    }
    with run_server(directory, config) as running:
        running.keys = keys
        yield running


def post(server, body: dict[str, Any] | None = None, path: str = "/v1/messages", **headers: str):
    with server.http(headers={name.replace("_", "-"): value for name, value in headers.items()}) as http:
        return http.post(path, json=body or BODY)


def error_of(answer) -> tuple[int, str]:
    body = answer.json()
    assert body["type"] == "error"
    assert body["request_id"] == answer.headers["request-id"]
    return answer.status_code, body["error"]["type"]


def test_a_key_in_either_header_or_in_both(server):
    key = server.keys["mine"]

    assert post(server, x_api_key=key).status_code == 200
    assert post(server, authorization=f"Bearer {key}").status_code == 200
    assert post(server, x_api_key=key, authorization=f"Bearer {key}").status_code == 200


def test_an_empty_key_header_beside_the_other_one_is_ignored(server):
    """The SDK sends it where `ANTHROPIC_API_KEY` is set to the empty string, and `ANTHROPIC_AUTH_TOKEN` to the key."""
    answer = post(server, x_api_key="", authorization=f"Bearer {server.keys['mine']}")

    assert answer.status_code == 200
    assert error_of(post(server, x_api_key="")) == (401, "authentication_error")


def test_two_keys_that_differ_are_refused(server):
    mine, other = server.keys["mine"], server.keys["other"]
    answer = post(server, x_api_key=mine, authorization=f"Bearer {other}")

    assert error_of(answer) == (401, "authentication_error")
    assert "different keys" in answer.json()["error"]["message"]


def test_a_wrong_key_is_not_retried(server):
    wrong = post(server, x_api_key="wrong"), post(server, authorization="Bearer wrong")
    for answer in (post(server), *wrong):
        assert error_of(answer) == (401, "authentication_error")
        assert answer.headers["x-should-retry"] == "false"
    with anthropic.Anthropic(base_url=server.url, api_key="wrong") as sdk, pytest.raises(anthropic.AuthenticationError):
        sdk.messages.create(**BODY)


def test_the_header_of_this_wire_does_not_open_the_other_one(server):
    key = server.keys["mine"]
    body = {"model": "scripted", "input": "hello"}

    assert post(server, body, "/v1/responses", x_api_key=key, anthropic_version="2023-06-01").status_code == 401
    with server.http(headers={"x-api-key": key}) as http:
        assert http.get("/v1/models").json()["error"]["code"] == "invalid_api_key"
        assert http.get("/v1/models", headers={"anthropic-version": "2023-06-01"}).json()["has_more"] is False


def test_unknown_models_are_not_found(server):
    assert error_of(post(server, {**BODY, "model": "absent"}, x_api_key=server.keys["mine"])) == (
        404,
        "not_found_error",
    )


def test_a_large_body_is_refused(server):
    large = {**BODY, "system": "x" * 20_000}

    assert error_of(post(server, large, x_api_key=server.keys["mine"])) == (413, "request_too_large")


def test_rate_limits(server):
    key = server.keys["limited"]
    assert post(server, x_api_key=key).status_code == 200
    answer = post(server, x_api_key=key)

    assert error_of(answer) == (429, "rate_limit_error")
    assert int(answer.headers["retry-after"]) > 0
