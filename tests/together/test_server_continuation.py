"""SIGKILL of the server during a background response: it continues, and its tools run at most once."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fake_base_sandbox import base_sandbox
from fake_echo_provider import RUNS
from fixtures_code_interpreter import AUTO, OUTPUTS, call
from fixtures_code_interpreter import code_server as local_server
from fixtures_postgres import postgres_server, schema_url  # noqa: F401 - a fixture
from fixtures_server import ROOT, Server, run_server
from stream_grammar import FINAL_EVENTS, SentEvent, check_stream, read_frames
from waiting import wait_until

INCLUDED = [*OUTPUTS, "file_search_call.results"]
INTERRUPTED = "The server was stopped while this call ran."
SLOW_TEXT = "".join(f"word{n} " for n in range(30))
SLOWLY = [step for n in range(30) for step in ({"text": f"word{n} "}, {"delay": 0.03})]
ECHO_SERVER = ROOT / "tests" / "support" / "fake_echo_provider.py"


def code(runs: Path, name: str, release: Path | None = None) -> str:
    """Code that appends its name to a file, and ends when the release file exists."""
    wait = ""
    if release is not None:
        wait = f"\nimport pathlib, time\nwhile not pathlib.Path({str(release)!r}).exists(): time.sleep(0.01)"
    return f"open({str(runs)!r}, 'a').write('{name}\\n'){wait}\nprint('{name} is done')"


def when(turn: int, *reply: dict[str, Any]) -> dict[str, Any]:
    return {"when": {"turn": turn}, "reply": list(reply)}


@pytest.fixture
def sandbox():
    with base_sandbox() as running:
        yield running


@pytest.fixture
def code_server(sandbox, tmp_path) -> Iterator[Callable[..., Server]]:
    """Starts a server whose code runs in a process that outlives it."""
    servers: list[Server] = []

    def start(*answers: dict[str, Any], **config: Any) -> Server:
        settings = {"enabled": True, "sandbox_url": sandbox.url, "execution_timeout": 60}
        config = {"providers": {"code_interpreter": settings}, **config}
        server = Server(tmp_path / "server", config, script={"fragment": 8, "answers": list(answers)})
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.kill()


def begin(server: Server, **request: Any) -> str:
    with server.http() as http:
        body = {"model": "scripted", "input": "go", "background": True, "tools": [AUTO], "include": INCLUDED, **request}
        answer = http.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


def read_stream(
    server: Server, identifier: str, after: int = -1, *, until: str = "", times: int = 1
) -> list[SentEvent]:
    """The events behind a sequence number: to the last, or up to so many of a type."""
    params: dict[str, Any] = {"stream": True, **({"starting_after": after} if after >= 0 else {})}
    received = b""
    with server.http() as http, http.stream("GET", f"/v1/responses/{identifier}", params=params) as answer:
        assert answer.status_code == 200
        for chunk in answer.iter_raw():
            received += chunk
            whole = received[: received.rfind(b"\n\n") + 2]
            if until and whole.count(f"event: {until}\n".encode()) >= times:
                return read_frames(whole)
    return read_frames(received)


def retrieve(server: Server, identifier: str) -> dict[str, Any]:
    with server.http() as http:
        return http.get(f"/v1/responses/{identifier}", params={"include[]": INCLUDED}).json()


def restart(server: Server) -> None:
    server.kill()
    server.start()


def check_continued(server: Server, identifier: str, seen: list[SentEvent]) -> dict[str, Any]:
    """Wait for the end. A client that goes on where its stream broke gets the rest, and a replay is one stream."""
    last = seen[-1]["sequence_number"]
    ended = read_stream(server, identifier, last)
    assert ended[-1]["type"] in FINAL_EVENTS
    replay = read_stream(server, identifier)
    check_stream(replay, background=True, is_continued=True)
    assert bare(ended) == bare(event for event in replay if event["sequence_number"] > last)
    kept = bare(event for event in replay if event["sequence_number"] <= last)
    assert kept == [event for event in bare(seen) if event in kept]
    response = retrieve(server, identifier)
    assert response["output"] == replay[-1]["response"]["output"]
    return response


def bare(events: Iterable[SentEvent]) -> list[SentEvent]:
    """Events without their padding, which is random."""
    return [{key: value for key, value in event.items() if key != "obfuscation"} for event in events]


def types(response: dict[str, Any]) -> list[tuple[str, str]]:
    return [(item["type"], item["status"]) for item in response["output"]]


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


@pytest.mark.parametrize("storage", ["sqlite", "postgres"])
def test_a_call_that_is_interrupted_by_a_kill_is_not_run_again(code_server, storage, tmp_path, request):
    runs, release = tmp_path / "runs", tmp_path / "release"
    config = {}
    if storage == "postgres":
        url = schema_url(request.getfixturevalue("postgres_server"), tmp_path)
        config = {"storage": {"url": url, "blobs": ".antwort/blobs"}}
    server = code_server(
        when(1, {"text": "I run it."}, call(code(runs, "one", release))),
        when(2, call(code(runs, "two"))),
        when(3, {"text": "<<output>>"}),
        **config,
    )
    identifier = begin(server)
    seen = read_stream(server, identifier, until="response.code_interpreter_call.interpreting")
    wait_until(lambda: lines(runs) == ["one"])
    restart(server)
    release.touch()
    response = check_continued(server, identifier, seen)

    assert lines(runs) == ["one", "two"]
    assert types(response) == [
        ("message", "completed"),
        ("code_interpreter_call", "failed"),
        ("code_interpreter_call", "completed"),
        ("message", "completed"),
    ]
    message, first, second, last = response["output"]
    assert first["id"] == next(event["item"]["id"] for event in seen if event.get("output_index") == 1)
    assert message["id"] == next(event["item"]["id"] for event in seen if event.get("output_index") == 0)
    assert first["outputs"][0]["logs"].startswith(INTERRUPTED)
    assert "two is done" in last["content"][0]["text"]
    assert first["container_id"] == second["container_id"]
    assert response["usage"]["output_tokens"] > 0


def test_a_call_for_the_client_stays_when_the_call_behind_it_is_interrupted_by_a_kill(code_server, tmp_path):
    runs, release = tmp_path / "runs", tmp_path / "release"
    patch = {"name": "apply_patch", "arguments": {"type": "update_file", "path": "a.py", "diff": "-a\n+b\n"}}
    server = code_server(
        when(1, {"call": patch}, call(code(runs, "one", release))),
        {"reply": [{"text": "not asked again"}]},
    )
    identifier = begin(server, tools=[AUTO, {"type": "apply_patch"}])
    seen = read_stream(server, identifier, until="response.code_interpreter_call.interpreting")
    restart(server)
    release.touch()

    response = check_continued(server, identifier, seen)

    assert response["status"] == "completed"
    assert types(response) == [("apply_patch_call", "completed"), ("code_interpreter_call", "failed")]
    assert response["output"][0]["operation"]["diff"] == "-a\n+b\n"


def test_a_call_that_has_ended_stays_and_the_cut_reply_is_written_again(code_server, tmp_path):
    runs = tmp_path / "runs"
    server = code_server(when(1, call(code(runs, "one"))), when(2, *SLOWLY), when(3, {"text": "never"}))
    identifier = begin(server)
    seen = read_stream(server, identifier, until="response.output_text.delta", times=3)
    restart(server)
    again = read_stream(server, identifier, seen[-1]["sequence_number"], until="response.output_text.delta", times=3)
    restart(server)
    response = check_continued(server, identifier, [*seen, *again])

    assert lines(runs) == ["one"]
    assert types(response) == [("code_interpreter_call", "completed"), ("message", "completed")]
    assert response["output"][0]["outputs"] == [{"type": "logs", "logs": "one is done\n"}]
    assert response["output"][1]["content"][0]["text"] == SLOW_TEXT
    announced = [event["output_index"] for event in again if event["type"] == "response.output_item.added"]
    assert announced == [1]


def test_the_model_reads_that_the_sandbox_was_lost_with_the_server(tmp_path):
    script = {"answers": [when(1, call("x = 1")), when(2, *SLOWLY, call("x")), when(3, {"text": "<<output>>"})]}
    with local_server("local", tmp_path / "server", script=script) as server:
        identifier = begin(server)
        seen = read_stream(server, identifier, until="response.output_text.delta")
        restart(server)
        response = check_continued(server, identifier, seen)

    first, _, second, last = response["output"]
    assert (first["status"], second["status"]) == ("completed", "completed")
    assert first["container_id"] == second["container_id"]
    text = last["content"][0]["text"]
    assert "The sandbox was restarted since the last call" in text
    assert "NameError" in text


def test_a_first_reply_that_was_cut_is_written_again(code_server):
    server = code_server(when(1, *SLOWLY))
    identifier = begin(server)
    seen = read_stream(server, identifier, until="response.output_text.delta", times=5)
    restart(server)
    response = check_continued(server, identifier, seen)

    assert types(response) == [("message", "completed")]
    assert response["output"][0]["content"][0]["text"] == SLOW_TEXT


def test_a_kill_during_the_first_of_two_calls_that_share_runs_the_second_one_once(tmp_path):
    calls = [{"call": {"name": "file_search", "arguments": {"query": query}}} for query in ("wait", "log two")]
    script = {"answers": [when(1, *calls, {"text": "Both."}), when(2, {"text": "<<output>>"})]}
    with run_server(tmp_path / "server", script=script, program=ECHO_SERVER) as server:
        tool = {"type": "file_search", "vector_store_ids": ["vs_shared"]}
        identifier = begin(server, tools=[tool])
        seen = read_stream(server, identifier, until="response.file_search_call.searching")
        restart(server)
        response = check_continued(server, identifier, seen)

        assert lines(server.directory / RUNS) == ["log two"]
    assert types(response) == [
        ("file_search_call", "failed"),
        ("file_search_call", "completed"),
        ("message", "completed"),
        ("message", "completed"),
    ]
    assert [item["content"][0]["text"] for item in response["output"][2:]] == ["Both.", "echo log two"]


def test_a_response_that_is_killed_too_often_fails_with_what_it_had(code_server, tmp_path):
    runs, release = tmp_path / "runs", tmp_path / "release"
    held = [call(code(runs, f"{n}", release)) for n in range(5)]
    server = code_server(*(when(n + 1, held[n]) for n in range(5)))
    identifier = begin(server)
    seen: list[SentEvent] = []
    for number in range(4):
        wait_until(lambda: len(lines(runs)) == number + 1)  # noqa: B023 - called at once
        seen = read_stream(server, identifier, until="response.code_interpreter_call.interpreting", times=number + 1)
        restart(server)
    response = check_continued(server, identifier, seen)
    release.touch()

    assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
    assert "begun 4 times" in response["error"]["message"]
    assert types(response) == [("code_interpreter_call", "failed")] * 4
    assert lines(runs) == ["0", "1", "2", "3"]


def test_a_deleted_response_is_not_continued(code_server, tmp_path):
    server = code_server(when(1, *SLOWLY))
    identifier = begin(server)
    read_stream(server, identifier, until="response.output_text.delta")
    with server.http() as http:
        assert http.delete(f"/v1/responses/{identifier}").status_code == 200
    restart(server)
    with server.http() as http:
        assert http.get(f"/v1/responses/{identifier}").status_code == httpx2.codes.NOT_FOUND


# ── responses that the next start cannot continue ────────────────────────────────────────────────────────────────────


def test_a_response_that_cannot_be_decoded_prevents_neither_the_start_nor_the_others(tmp_path):
    """Such as one with a status of a later version."""
    with run_server(tmp_path) as server:
        bad, good = [begin(server, tools=[], input=text) for text in ("forever", "slowly")]
        server.kill()
        with closing(sqlite3.connect(tmp_path / ".antwort" / "antwort.db")) as database:
            changed = """UPDATE responses SET body = CAST(replace(CAST(body AS TEXT),
                '"status":"', '"status":"later_') AS BLOB) WHERE id = ?"""
            assert database.execute(changed, (bad,)).rowcount == 1
            database.commit()
        server.start()
        client = server.client()
        wait_until(lambda: client.responses.retrieve(good).status == "completed")
        assert [line for line in server.read_log().splitlines() if "response_unreadable" in line and bad in line]


def test_a_response_whose_preparation_ends_the_process_is_tried_three_times(tmp_path):
    tool = {"type": "file_search", "vector_store_ids": ["vs_crash"]}
    with run_server(tmp_path, program=ECHO_SERVER) as server:
        crashing = begin(server, tools=[tool], input="forever")
        server.kill()
        for _ in range(3):
            with pytest.raises(AssertionError, match="did not start; exit status 9"):
                server.start()
        server.start()
        failed = server.client().responses.retrieve(crashing)
    assert failed.status == "failed"
    assert "begun 4 times" in failed.error.message
