"""CORS by configuration: web pages of configured origins can use the server and read its errors, others cannot."""

from __future__ import annotations

import os
import subprocess
import sys

import httpx2
import pytest
from fixtures_server import ROOT, create_key, run_server

APP, OTHER = "https://app.example", "https://evil.example"
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-lang",
}
BODY = {"input": "hello"}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("keyed")
    key = create_key(directory, "page")
    config = {"auth": {"keys_file": "keys.json"}, "server": {"cors_origins": [APP, "http://localhost:3000"]}}
    with run_server(directory, config) as server:
        server.keys["page"] = key
        yield server


@pytest.fixture(scope="module")
def unkeyed(tmp_path_factory):
    with run_server(tmp_path_factory.mktemp("unkeyed"), {"server": {"cors_origins": [APP]}}) as server:
        yield server


@pytest.fixture(scope="module")
def without_cors(tmp_path_factory):
    directory = tmp_path_factory.mktemp("off")
    key = create_key(directory, "page")
    with run_server(directory, {"auth": {"keys_file": "keys.json"}}) as server:
        server.keys["page"] = key
        yield server


def cors_headers(answer: httpx2.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


def test_cors_is_off_by_default(without_cors):
    key = without_cors.keys["page"]
    with without_cors.http(headers={"origin": APP}) as http:
        assert http.options("/v1/responses", headers=PREFLIGHT).status_code == 401
        answer = http.post("/v1/responses", json=BODY, headers={"authorization": f"Bearer {key}"})
    assert (answer.status_code, cors_headers(answer), answer.headers.get("vary")) == (200, {}, None)


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/files/file-1/content", "/v1/nothing"])
def test_a_preflight_of_a_configured_origin_needs_no_key(keyed, path):
    with keyed.http(headers={"origin": APP}) as http:
        answer = http.options(path, headers=PREFLIGHT)

    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == APP
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-headers"] == PREFLIGHT["access-control-request-headers"]
    assert "Origin" in answer.headers["vary"]
    assert answer.headers["x-request-id"].startswith("req_")
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("origin", [OTHER, "null", APP + ".evil.example", "http://app.example", APP + ":8443"])
def test_a_preflight_of_another_origin_is_a_403_without_cors_headers(keyed, origin):
    with keyed.http(headers={"origin": origin}) as http:
        answer = http.options("/v1/responses", headers=PREFLIGHT)

    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
    assert "access-control-allow-origin" not in answer.headers
    assert answer.headers["vary"] == "Origin"


def test_a_page_of_a_configured_origin_can_read_answers_and_errors(keyed):
    key = {"authorization": f"Bearer {keyed.keys['page']}"}
    with keyed.http(headers={"origin": APP}) as http:
        answers = {
            200: http.post("/v1/responses", json=BODY, headers=key),
            400: http.post("/v1/responses", json={**BODY, "temperature": 9}, headers=key),
            401: http.post("/v1/responses", json=BODY),
            404: http.get("/v1/nothing", headers=key),
            405: http.put("/v1/responses", headers=key),
        }

    for status, answer in answers.items():
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, APP)
        assert answer.headers["vary"] == "Origin"
        exposed = answer.headers["access-control-expose-headers"].split(", ")
        assert {"x-request-id", "retry-after", "x-should-retry", "openai-processing-ms"} <= set(exposed)


def test_a_page_of_a_configured_origin_can_read_a_stream(keyed):
    headers = {"origin": APP, "authorization": f"Bearer {keyed.keys['page']}"}
    with (
        keyed.http(headers=headers) as http,
        http.stream("POST", "/v1/responses", json={**BODY, "stream": True}) as answer,
    ):
        chunks = list(answer.iter_raw())

    assert answer.headers["access-control-allow-origin"] == APP
    assert len(chunks) > 1
    assert b"event: response.completed" in b"".join(chunks)


def test_a_page_of_another_origin_cannot_read_answers(keyed):
    with keyed.http(headers={"authorization": f"Bearer {keyed.keys['page']}"}) as http:
        for headers in ({"origin": OTHER}, {}):
            answer = http.post("/v1/responses", json=BODY, headers=headers)
            assert (answer.status_code, answer.headers["vary"]) == (200, "Origin")
            assert "access-control-allow-origin" not in answer.headers


def test_without_keys_only_pages_of_configured_origins_are_answered(unkeyed):
    page = {"origin": APP, "sec-fetch-site": "cross-site"}
    with unkeyed.http() as http:
        allowed = http.post("/v1/responses", json=BODY, headers=page)
        assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, APP)
        rejected = [
            {"origin": OTHER},
            {"origin": "null"},
            {"sec-fetch-site": "cross-site"},
            {**page, "host": "rebound.example"},
        ]
        for headers in rejected:
            answer = http.get("/v1/models", headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
        two = [("origin", APP), ("origin", OTHER)]
        assert http.get("/v1/models", headers=two).status_code == 403
        assert http.options("/v1/responses", headers={**PREFLIGHT, "origin": OTHER}).status_code == 403


def test_all_origins_are_possible_with_keys(tmp_path):
    key = create_key(tmp_path, "page")
    config = {"auth": {"keys_file": "keys.json"}, "server": {"cors_origins": ["*"]}}
    with run_server(tmp_path, config) as server, server.http(headers={"origin": OTHER}) as http:
        assert http.options("/v1/responses", headers=PREFLIGHT).headers["access-control-allow-origin"] == "*"
        answer = http.post("/v1/responses", json=BODY, headers={"authorization": f"Bearer {key}"})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "*")
        refused = http.get("/v1/models")
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, "*")


def test_all_origins_are_refused_without_keys(tmp_path):
    (tmp_path / "antwort.yaml").write_text("server: {port: 0, cors_origins: ['*']}\n", encoding="utf-8")
    command = [sys.executable, "-m", "antwort", "serve", "--config", "antwort.yaml"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )

    assert ended.returncode != 0
    assert "server.cors_origins: `*` would let every web page use this server" in ended.stderr
    assert "Traceback" not in ended.stderr
