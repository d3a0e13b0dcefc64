"""Circuit breakers and retries through the server process, with a fake upstream that fails and recovers."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import httpx2
import openai
import pytest
import yaml
from fake_upstream import FakeUpstream, running_upstream
from fixtures_server import create_key, run_server
from waiting import wait_until

from antwort.testing.model import ModelAnswer

ANSWER = FakeUpstream.chat(ModelAnswer(text="Hello."))
ERROR = FakeUpstream.json({"error": {"message": "broken"}}, 500)
BUSY = FakeUpstream.json({"error": {"message": "slow down"}}, 429, {"retry-after": "1"})
FAILURES = 5
"""Consecutive failures that open the breaker by default."""
BURST = 6

# Settings of a model by its name: each test uses models of its own, because a breaker keeps its state.
SETTINGS = {
    "defaults blocking": {},
    "defaults streaming": {},
    "reset": {},
    "tenants": {},
    "two failures": {"breaker_failures": 2, "breaker_pause": 600},
    "no breaker": {"breaker_failures": 0},
    "two attempts": {"attempts": 2, "base_backoff": 0, "max_backoff": 0},
    "long retry-after": {"attempts": 2, "max_retry_after": 0.5},
    "short retry-after": {"attempts": 2, "max_retry_after": 1},
    **{f"burst {outcome}": {"breaker_failures": 2, "breaker_pause": 0.1} for outcome in ("succeeds", "cancelled")},
    "burst fails": {"breaker_failures": 2, "breaker_pause": 1},
    "slow probe": {"breaker_failures": 2, "breaker_pause": 0.1, "breaker_wait": 0.1},
    "default attempts": {"attempts": 3, "base_backoff": 0, "max_backoff": 0},
}


@pytest.fixture(scope="module")
def upstream():
    with running_upstream() as upstream:
        yield upstream


@pytest.fixture(scope="module")
def server(tmp_path_factory, upstream):
    directory = tmp_path_factory.mktemp("server")
    keys = {tenant: create_key(directory, tenant, "--tenant", tenant) for tenant in ("a", "b")}
    common = {"kind": "chat_completions", "base_url": upstream.url, "attempts": 1}
    models = {name: {**common, **settings} for name, settings in SETTINGS.items()}
    with run_server(directory, {"models": models, "auth": {"keys_file": "keys.json"}}) as running:
        running.keys = keys
        yield running


@pytest.fixture(autouse=True)
def _reset(upstream):
    upstream.reset()


@pytest.fixture
def client(server):
    with server.client(server.keys["a"]) as client:
        yield client


@pytest.fixture
def other_client(server):
    with server.client(server.keys["b"]) as client:
        yield client


def answer(client, model: str) -> str:
    return client.responses.create(model=model, input="hello").output_text


def fail(client, model: str) -> int:
    with pytest.raises(openai.InternalServerError) as caught:
        answer(client, model)
    return caught.value.status_code


@pytest.mark.parametrize("mode", ["blocking", "streaming"])
def test_failures_between_successes_never_open_the_breaker(client, upstream, mode):
    model = f"defaults {mode}"
    for _ in range(FAILURES + 1):
        upstream.set_replies(ERROR)
        assert fail(client, model) == 502
        upstream.set_replies(ANSWER)
        if mode == "streaming":
            *_, last = client.responses.create(model=model, input="hello", stream=True)
            assert last.response.output_text == "Hello."
        else:
            assert answer(client, model) == "Hello."

    assert len(upstream.requests) == 2 * (FAILURES + 1)


def test_consecutive_failures_open_the_breaker_and_a_success_resets_the_count(client, upstream):
    upstream.set_replies(ERROR)
    assert [fail(client, "reset") for _ in range(FAILURES - 1)] == [502] * (FAILURES - 1)
    upstream.set_replies(ANSWER)
    assert answer(client, "reset") == "Hello."
    upstream.set_replies(ERROR)
    assert [fail(client, "reset") for _ in range(FAILURES)] == [502] * FAILURES

    sent = len(upstream.requests)
    assert fail(client, "reset") == 503
    assert len(upstream.requests) == sent


def test_the_failures_of_one_tenant_do_not_lock_out_another(client, other_client, upstream):
    upstream.set_replies(ERROR)
    assert [fail(client, "tenants") for _ in range(FAILURES + 1)] == [502] * FAILURES + [503]
    upstream.set_replies(ANSWER)

    assert answer(other_client, "tenants") == "Hello."
    assert fail(client, "tenants") == 503
    assert answer(other_client, "tenants") == "Hello."


def test_every_attempt_counts_and_the_request_that_opens_the_breaker_gets_its_own_error(client, upstream):
    upstream.set_replies(ERROR)

    assert [fail(client, "default attempts") for _ in range(3)] == [502, 502, 503]
    assert len(upstream.requests) == FAILURES


# ── a burst after the pause ──────────────────────────────────────────────────────────────────────────────────────────


class Burst:
    """A probe that the upstream holds back, and requests that arrive meanwhile."""

    def __init__(self, server, upstream: FakeUpstream, model: str) -> None:
        self._server = server
        self._upstream = upstream
        self._model = model
        self.released = threading.Event()

    def open_breaker(self, reply) -> int:
        """Open the breaker; the number of requests that the upstream has got. The probe will get this reply."""
        self._upstream.set_replies(ERROR)
        assert [self.send().status_code for _ in range(2)] == [502, 502]
        self._upstream.set_replies(replace(reply, hold=self.released), ANSWER)
        return len(self._upstream.requests)

    def start_probe(self, pool: ThreadPoolExecutor, reply) -> Future[httpx2.Response]:
        """Open the breaker, and send requests until the pause is over and one is sent to the upstream."""
        sent = self.open_breaker(reply)
        probe = pool.submit(lambda: wait_until(lambda: self._answered_unless_503(sent)))
        wait_until(lambda: len(self._upstream.requests) > sent)
        return probe

    def start_burst(self, pool: ThreadPoolExecutor) -> list[Future[httpx2.Response]]:
        """Send requests and wait until the server has them, besides the probe."""
        sent = len(self._upstream.requests)
        burst = [pool.submit(self.send) for _ in range(BURST)]
        wait_until(lambda: self._running() == BURST + 1 or any(one.done() for one in burst))
        assert len(self._upstream.requests) == sent, "they wait for the probe"
        return burst

    def send(self) -> httpx2.Response:
        headers = {"authorization": f"Bearer {self._server.keys['a']}"}
        with self._server.http(headers=headers) as http:
            return http.post("/v1/responses", json={"model": self._model, "input": "hello"})

    def _answered_unless_503(self, sent: int) -> httpx2.Response | None:
        response = self.send()
        return response if response.status_code != 503 or len(self._upstream.requests) > sent else None

    def _running(self) -> float:
        with self._server.http() as http:
            metrics = http.get("/metrics", headers={"authorization": f"Bearer {self._server.keys['a']}"}).text
        return float(re.search(r"^antwort_responses_running (\S+)$", metrics, re.MULTILINE)[1])  # pyright: ignore[reportOptionalSubscript] - a missing metric fails the test


def test_a_burst_after_the_pause_waits_for_the_probe_and_is_admitted_by_its_success(server, upstream):
    burst = Burst(server, upstream, "burst succeeds")
    with ThreadPoolExecutor(BURST + 1) as pool:
        probe = burst.start_probe(pool, ANSWER)
        waiting = burst.start_burst(pool)
        burst.released.set()

        assert [one.result(30).status_code for one in (probe, *waiting)] == [200] * (BURST + 1)


def test_a_burst_after_the_pause_is_refused_with_retry_after_when_the_probe_fails(server, upstream):
    burst = Burst(server, upstream, "burst fails")
    with ThreadPoolExecutor(BURST + 1) as pool:
        probe = burst.start_probe(pool, ERROR)
        waiting = burst.start_burst(pool)
        sent = len(upstream.requests)
        burst.released.set()

        assert probe.result(30).status_code == 502
        refused = [one.result(30) for one in waiting]
    assert [one.status_code for one in refused] == [503] * BURST
    assert {one.headers["retry-after"] for one in refused} == {"1"}
    assert len(upstream.requests) == sent


def test_a_request_does_not_wait_longer_for_a_slow_probe_than_configured(server, upstream):
    burst = Burst(server, upstream, "slow probe")
    with ThreadPoolExecutor(1) as pool:
        probe = burst.start_probe(pool, ANSWER)
        try:
            refused = burst.send()
        finally:
            burst.released.set()

        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert probe.result(30).status_code == 200
    assert burst.send().status_code == 200


def test_the_next_request_of_a_burst_is_the_probe_when_the_probe_is_cancelled(server, upstream, client):
    burst = Burst(server, upstream, "burst cancelled")
    sent = burst.open_breaker(ANSWER)

    def start_probe() -> str | None:
        response = client.responses.create(model="burst cancelled", input="hello", background=True)
        wait_until(lambda: len(upstream.requests) > sent or client.responses.retrieve(response.id).status == "failed")
        return response.id if len(upstream.requests) > sent else None

    probe = wait_until(start_probe)
    with ThreadPoolExecutor(BURST) as pool:
        waiting = burst.start_burst(pool)
        client.responses.cancel(probe)
        assert upstream.client_disconnected.wait(30)

        assert [one.result(30).status_code for one in waiting] == [200] * BURST
    assert len(upstream.requests) == sent + 1 + BURST


# ── settings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_number_of_failures_and_the_pause_are_settings_of_a_model(client, upstream):
    upstream.set_replies(ERROR)
    assert [fail(client, "two failures") for _ in range(2)] == [502, 502]
    with pytest.raises(openai.InternalServerError) as caught:
        answer(client, "two failures")

    assert caught.value.status_code == 503
    assert 500 < int(caught.value.response.headers["retry-after"]) <= 600


def test_a_breaker_can_be_switched_off(client, upstream):
    upstream.set_replies(ERROR)

    assert [fail(client, "no breaker") for _ in range(FAILURES + 2)] == [502] * (FAILURES + 2)


def test_attempts_and_back_off_are_settings_of_a_model(client, upstream):
    upstream.set_replies(ERROR, ANSWER)
    assert answer(client, "two attempts") == "Hello."
    upstream.set_replies(ERROR, ERROR, ANSWER)
    assert fail(client, "two attempts") == 502
    assert len(upstream.requests) == 4


def test_the_longest_retry_after_that_is_waited_for_is_a_setting_of_a_model(client, upstream):
    upstream.set_replies(BUSY, ANSWER)
    with pytest.raises(openai.RateLimitError) as caught:
        answer(client, "long retry-after")
    assert caught.value.response.headers["retry-after"] == "1"
    upstream.set_replies(BUSY, ANSWER)

    assert answer(client, "short retry-after") == "Hello."


def test_an_invalid_setting_ends_the_start_with_its_key_and_the_reason(tmp_path):
    model = {"kind": "responses", "base_url": "http://127.0.0.1:9/v1", "breaker_failures": -1}
    (tmp_path / "antwort.yaml").write_text(yaml.safe_dump({"models": {"m": model}}), encoding="utf-8")
    command = [sys.executable, "-m", "antwort", "serve", "--config", "antwort.yaml"]
    started = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    assert started.returncode != 0
    assert "models.m.breaker_failures: expected `int` >= 0" in started.stderr
