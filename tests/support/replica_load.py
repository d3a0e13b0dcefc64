"""Load on several replicas by clients that go on at another replica after an error, and the ledger of what they saw.

A client sends every request to the next replica, as behind a load balancer without stickiness. After a connection
error or a 503 it sends it to the one after that. Everything that a server has acknowledged is in the ledger.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

import httpx2
import openai
from openai import OpenAI

T = TypeVar("T")

RETRY_SECONDS = 60.0
POLL_SECONDS = 0.1
PAUSE_SECONDS = 0.05
CODE_INTERPRETER = {"type": "code_interpreter", "container": {"type": "auto"}}
CODE = """\
with open("/mnt/data/runs", "a+") as file:
    print("<<text>>", file=file)
    file.seek(0)
    print("runs:", file.read().count("<<text>>"))
"""
SEARCH = {"type": "file_search", "vector_store_ids": ["vs_1"]}
OUTPUTS = "code_interpreter_call.outputs"
ENDED = ("completed", "failed", "incomplete", "cancelled")
FINAL_EVENTS = ("response.completed", "response.incomplete", "response.failed")
WORDS = 12
SLOWLY = "".join(f"word{number} " for number in range(WORDS))
SCRIPT = {
    "fragment": 4,
    "answers": [
        {
            "when": {"text": "slowly"},
            "reply": [step for word in range(WORDS) for step in ({"text": f"word{word} "}, {"delay": 0.12})],
        },
        *(
            {
                "when": {"text": "count", "turn": turn},
                "reply": [
                    {"delay": 0.2},
                    {"call": {"name": "file_search", "arguments": {"query": f"<<text>> {step}"}}},
                    {"delay": 0.1},
                ],
            }
            for turn, step in enumerate(("one", "two"), 1)
        ),
        {"when": {"text": "count"}, "reply": [{"text": "counted "}, {"delay": 0.3}, {"text": "<<text>>"}]},
        {
            "when": {"text": "code", "turn": 1},
            "reply": [{"call": {"name": "code_interpreter", "arguments": {"code": CODE}}}],
        },
        {"when": {"text": "code"}, "reply": [{"delay": 0.3}, {"text": "ran <<text>>"}]},
        {"reply": [{"delay": 0.02}, {"text": "You said: <<text>>"}]},
    ],
}


@dataclass
class Ledger:
    """What servers have acknowledged, by id. Threads only add to it."""

    texts: dict[str, str] = field(default_factory=dict[str, str])
    """Foreground responses whose end was received."""
    begun: dict[str, str] = field(default_factory=dict[str, str])
    """Foreground streams that broke off, with the text of a completed one."""
    background: dict[str, str] = field(default_factory=dict[str, str])
    """Background responses that were created, with their text."""
    deleted: set[str] = field(default_factory=set[str])
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    conversations: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    queries: set[str] = field(default_factory=set[str])
    """Inputs of responses with counted calls, acknowledged or not."""
    requests: Counter[str] = field(default_factory=Counter[str])
    failures: Counter[str] = field(default_factory=Counter[str])
    unexpected: list[str] = field(default_factory=list[str])
    """What no client may see."""
    resumed_streams: int = 0

    def fail(self, message: str) -> None:
        self.unexpected.append(message)


class UnexpectedError(Exception):
    """A reply that no client may see; it is in the ledger."""


class StreamBrokenError(Exception):
    """A stream ended without a final event."""


class Balancer:
    """The clients of one thread, one for each replica."""

    def __init__(self, urls: Sequence[str], key: str, ledger: Ledger, first: int) -> None:
        self._clients: list[Any] = [
            OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=30) for url in urls
        ]
        self._http = [
            httpx2.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=30, trust_env=False)
            for url in urls
        ]
        self._turns = count(first)
        self.ledger = ledger

    def close(self) -> None:
        for client in (*self._clients, *self._http):
            client.close()

    def call(self, kind: str, send: Callable[[Any], T]) -> T:
        """Send a request with the SDK, to the next replica until one answers."""
        return self._until_answered(kind, self._clients, send)

    def get(self, kind: str, path: str, **params: str) -> httpx2.Response:
        """Send a GET without the SDK."""

        def send(http: httpx2.Client) -> httpx2.Response:
            return http.get(path, params=params).raise_for_status()

        return self._until_answered(kind, self._http, send)

    def read_stream(self, kind: str, method: str, path: str, **options: Any) -> Iterator[dict[str, Any]]:
        """The events of a stream of one replica. `StreamBrokenError` after a connection error, without a retry."""
        self.ledger.requests[kind] += 1
        http = self._http[next(self._turns) % len(self._http)]
        try:
            with http.stream(method, path, **options) as reply:
                if reply.status_code != httpx2.codes.OK:
                    self._check_status(kind, reply.status_code, reply.read().decode())
                    raise StreamBrokenError
                for line in reply.iter_lines():
                    if line.startswith("data: {"):
                        yield json.loads(line.removeprefix("data: "))
        except httpx2.TransportError as error:
            self.ledger.failures[type(error).__name__] += 1
            raise StreamBrokenError from error

    def _until_answered(self, kind: str, clients: Sequence[Any], send: Callable[[Any], T]) -> T:
        deadline = time.monotonic() + RETRY_SECONDS
        while time.monotonic() < deadline:
            self.ledger.requests[kind] += 1
            try:
                return send(clients[next(self._turns) % len(clients)])
            except (openai.APIConnectionError, httpx2.TransportError) as error:
                self.ledger.failures[type(error.__cause__ or error).__name__] += 1
            except (openai.APIStatusError, httpx2.HTTPStatusError) as error:
                self._check_status(kind, error.response.status_code, error.response.text)
            time.sleep(PAUSE_SECONDS)
        self.ledger.fail(f"{kind}: no replica has answered for {RETRY_SECONDS:g} s")
        raise UnexpectedError

    def _check_status(self, kind: str, status: int, body: str) -> None:
        """A 503 is worth a retry at another replica; every other error is unexpected."""
        self.ledger.failures[str(status)] += 1
        if status != httpx2.codes.SERVICE_UNAVAILABLE:
            self.ledger.fail(f"{kind}: {status} {body[:300]}")
            raise UnexpectedError


# ── what the clients do ──────────────────────────────────────────────────────────────────────────────────────────────


def chain(balancer: Balancer, name: str) -> None:
    """Three responses in a chain, blocking; the history of each is checked."""
    previous: dict[str, str] = {}
    for number in range(3):
        text = f"{name}-{number}"
        response = balancer.call("create", lambda one, t=text, p=previous: one.responses.create(input=t, **p))
        previous = {"previous_response_id": response.id}
        balancer.ledger.texts[response.id] = f"You said: {text}"
        _expect(balancer, response.output_text, f"You said: {text}")


def create_and_delete(balancer: Balancer, name: str) -> None:
    """A response that is deleted at the other replica."""
    response = balancer.call("create", lambda one: one.responses.create(input=name))
    _delete(balancer, "delete", lambda one: one.responses.delete(response.id))
    balancer.ledger.deleted.add(response.id)


def _delete(balancer: Balancer, kind: str, delete: Callable[[Any], object]) -> None:
    """A deletion. One that is answered with 404 was done by an earlier attempt, whose reply was lost."""
    attempts = 0

    def attempt(one: Any) -> None:
        nonlocal attempts
        attempts += 1
        try:
            delete(one)
        except openai.NotFoundError:
            if attempts == 1:
                raise

    balancer.call(kind, attempt)


def stream(balancer: Balancer, name: str) -> None:
    """A foreground stream with counted calls. It may break off; then its response must end anyway.

    So it does where its replica was paused, and finds that another one has ended the response.
    """
    balancer.ledger.queries.add(text := f"count {name}")
    body = {"input": text, "stream": True, "tools": [SEARCH]}
    identifier, last = "", -1
    try:
        for event in balancer.read_stream("stream", "POST", "/v1/responses", json=body):
            last = _check_number(balancer, event, last)
            if event["type"] == "response.created":
                identifier = event["response"]["id"]
                balancer.ledger.begun[identifier] = f"counted {text}"
            elif event["type"] == "response.failed" and "taken over" in event["response"]["error"]["message"]:
                balancer.ledger.failures["taken over"] += 1
            elif event["type"] in FINAL_EVENTS:
                _expect(balancer, _output_text(event["response"]), f"counted {text}")
                balancer.ledger.texts[identifier] = balancer.ledger.begun.pop(identifier)
    except StreamBrokenError:
        return


def poll(balancer: Balancer, name: str) -> None:
    """A background response with counted calls, polled at alternating replicas."""
    balancer.ledger.queries.add(text := f"count {name}")
    _run_in_background(balancer, text, f"counted {text}", SEARCH)


def run_code(balancer: Balancer, name: str) -> None:
    """Code in the container of a background response. It counts its own runs; then the container is deleted."""
    text = f"code {name}"
    response = _run_in_background(balancer, text, f"ran {text}", CODE_INTERPRETER, include=[OUTPUTS])
    for item in response.output:
        if item.type == "code_interpreter_call":
            outputs = "".join(output.logs for output in item.outputs or ())
            _expect(balancer, item.status != "completed" or "runs: 1" in outputs, expected=True)
            container = item.container_id
            files = balancer.call("list files", lambda one, c=container: one.containers.files.list(c).data)
            _expect(balancer, [file.path for file in files] in (["/mnt/data/runs"], []), expected=True)
            _delete(balancer, "delete container", lambda one, c=container: one.containers.delete(c))


def _run_in_background(balancer: Balancer, text: str, expected: str, tool: object, **options: object) -> Any:
    created = balancer.call(
        "create background", lambda one: one.responses.create(input=text, tools=[tool], background=True, **options)
    )
    balancer.ledger.background[created.id] = expected
    deadline = time.monotonic() + RETRY_SECONDS
    while time.monotonic() < deadline:
        response = balancer.call("poll", lambda one: one.responses.retrieve(created.id, **options))
        if response.status in ENDED:
            _expect(balancer, (response.status, response.output_text), ("completed", expected))
            return response
        time.sleep(POLL_SECONDS)
    balancer.ledger.fail(f"{created.id} was not ended after {RETRY_SECONDS:g} s")
    raise UnexpectedError


def follow(balancer: Balancer, name: str) -> None:
    """A background stream; after an error it goes on at the other replica, behind the last event."""
    text, expected = (f"count {name}", f"counted count {name}") if name.endswith("0") else ("slowly", SLOWLY)
    if expected != SLOWLY:
        balancer.ledger.queries.add(text)
    body = {"input": text, "stream": True, "background": True, "tools": [SEARCH]}
    identifier, last, finals = "", -1, 0
    source = balancer.read_stream("create background stream", "POST", "/v1/responses", json=body)
    deadline = time.monotonic() + RETRY_SECONDS
    while time.monotonic() < deadline:
        try:
            for event in source:
                last = _check_number(balancer, event, last)
                if event["type"] == "response.created":
                    identifier = event["response"]["id"]
                    balancer.ledger.background[identifier] = expected
                elif event["type"] in FINAL_EVENTS:
                    finals += 1
                    _expect(balancer, _output_text(event["response"]), expected)
        except StreamBrokenError:
            pass
        if finals or not identifier:
            break
        balancer.ledger.resumed_streams += 1
        time.sleep(PAUSE_SECONDS)
        path = f"/v1/responses/{identifier}"
        source = balancer.read_stream("resume", "GET", path, params={"stream": "true", "starting_after": last})
    if finals != 1 and identifier:
        balancer.ledger.fail(f"{identifier}: {finals} final events")


def upload(balancer: Balancer, name: str) -> None:
    """A file, whose content is read at the other replica."""
    content = os.urandom(50_000)
    file = balancer.call("upload", lambda one: one.files.create(file=(name, content), purpose="user_data"))
    balancer.ledger.files[file.id] = content
    _expect(
        balancer, balancer.call("download", lambda one: one.files.content(file.id).read()) == content, expected=True
    )


def converse(balancer: Balancer, name: str) -> None:
    """A conversation of three responses. A lost reply leaves a response that the client does not know."""
    conversation = balancer.call("create conversation", lambda one: one.conversations.create()).id
    acknowledged = balancer.ledger.conversations[conversation] = []
    for number in range(3):
        text = f"{name}-{number}"
        balancer.call("create", lambda one, t=text: one.responses.create(input=t, conversation=conversation))
        acknowledged += [text, f"You said: {text}"]


ACTIVITIES = (chain, create_and_delete, stream, poll, poll, follow, follow, follow, upload, converse, run_code)


def run_clients(urls: Sequence[str], key: str, ledger: Ledger, is_over: threading.Event) -> list[threading.Thread]:
    """Start a thread for each activity, which repeats it until the event is set."""

    def repeat(activity: Callable[[Balancer, str], None], number: int) -> None:
        balancer = Balancer(urls, key, ledger, number)
        try:
            for repetition in count():
                if is_over.is_set():
                    break
                try:
                    activity(balancer, f"{activity.__name__}{number}-{repetition}")
                except UnexpectedError:
                    continue
                except Exception as error:  # noqa: BLE001 - the outermost loop: the test reports it
                    ledger.fail(f"{activity.__name__}: {error!r}")
                time.sleep(PAUSE_SECONDS)
        finally:
            balancer.close()

    threads = [
        threading.Thread(target=repeat, args=(activity, number), name=f"{activity.__name__}{number}")
        for number, activity in enumerate(ACTIVITIES)
    ]
    for thread in threads:
        thread.start()
    return threads


def _expect(balancer: Balancer, found: object, expected: object) -> None:
    if found != expected:
        balancer.ledger.fail(f"expected {expected!r}, not {found!r}")


def _check_number(balancer: Balancer, event: dict[str, Any], last: int) -> int:
    number = event.get("sequence_number", -1)
    if number <= last:
        balancer.ledger.fail(f"event {number} after event {last}: {event['type']}")
    return number


def _output_text(response: dict[str, Any]) -> str:
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part.get("text", "") for part in parts)
