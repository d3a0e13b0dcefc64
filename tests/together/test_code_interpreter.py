"""Code interpreter, with the real server, the real SDK and every sandbox backend."""

from __future__ import annotations

import ast
import base64
import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from fixtures_code_interpreter import (
    AUTO,
    BACKENDS,
    OUTPUTS,
    SCRIPT,
    call,
    calls_of,
    code_server,
    logs_of,
    metric,
    run,
    run_with_callback,
    sandbox_pid,
)
from fixtures_container_replicas import run_container_replicas
from fixtures_container_server import execute
from fixtures_server import create_key
from pydantic import BaseModel

SALES = b"city,sold\nBerlin,3\nParis,4\n"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Weather(BaseModel):
    degrees: int


@pytest.fixture(scope="module", params=[*BACKENDS, pytest.param("replicas", marks=pytest.mark.long)])
def server(request, tmp_path_factory):
    directory, containers = tmp_path_factory.mktemp("server"), {"max_containers": 500}
    if request.param == "replicas":
        opened = run_container_replicas(
            request.getfixturevalue("postgres_server"), directory, {"containers": containers}
        )
    else:
        opened = code_server(request.param, directory, containers=containers)
    with opened as running:
        yield running


@pytest.fixture
def client(server):
    with server.client() as client:
        yield client


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_chat_completion_runs_code_and_continues_in_the_same_container(client, stream):
    def ask(*messages):
        request = {"model": "scripted", "messages": messages, "extra_body": {"antwort:tools": [AUTO]}}
        if not stream:
            return client.chat.completions.create(**request).choices[0].message
        with client.chat.completions.stream(**request) as events:
            return events.get_final_completion().choices[0].message

    question = {"role": "user", "content": "# run\nx = 20; x"}
    first = ask(question)
    (item,) = first.model_extra["antwort:items"]
    assert (first.content, item["status"], item["outputs"]) == ("20", "completed", [{"type": "logs", "logs": "20"}])

    again = {"role": "user", "content": "# run\nx + 1"}
    second = ask(question, first.model_dump(exclude_none=True), again)
    assert second.content == "21"
    assert second.model_extra["antwort:items"][0]["container_id"] == item["container_id"]


# ── files and results ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_upload_analyse_chart_citation_download(client, stream):
    uploaded = client.files.create(file=("sales.csv", SALES), purpose="user_data")
    tool = {"type": "code_interpreter", "container": {"type": "auto", "file_ids": [uploaded.id]}}
    request = {"model": "scripted", "input": "Please analyse it", "tools": [tool], "include": OUTPUTS}
    if stream:
        with client.responses.stream(**request) as events:
            for _ in events:
                pass
            response = events.get_final_response()
    else:
        response = client.responses.create(**request)

    (item,) = calls_of(response)
    assert item.status == "completed"
    assert item.outputs[0].logs == "7"
    assert item.outputs[1].type == "image"
    assert base64.b64decode(item.outputs[1].url.removeprefix("data:image/png;base64,")).startswith(b"\x89PNG")

    (part,) = response.output[-1].content
    cited = {one.filename: one for one in part.annotations}
    assert {name: part.text[one.start_index : one.end_index] for name, one in cited.items()} == {
        "chart.png": "sandbox:/mnt/data/chart.png",
        "totals.csv": "totals.csv",
    }
    content = client.containers.files.content
    chart = content.retrieve(cited["chart.png"].file_id, container_id=item.container_id).content
    assert chart.startswith(b"\x89PNG")
    totals = content.retrieve(cited["totals.csv"].file_id, container_id=item.container_id).content
    assert totals == b"city,sold\nBerlin,3\nParis,4\n"
    files = client.containers.files.list(item.container_id).data
    assert {(file.path, file.source) for file in files} == {
        ("/mnt/data/sales.csv", "user"),
        ("/mnt/data/totals.csv", "assistant"),
        ("/mnt/data/chart.png", "assistant"),
    }
    client.containers.delete(item.container_id)


def test_attached_files_are_in_the_container(client):
    uploaded = client.files.create(file=("a b.csv", b"1"), purpose="user_data")
    data = "data:text/csv;base64," + base64.b64encode(b"22").decode()
    parts = [
        {
            "type": "input_text",
            "text": "# run\nimport os\n{name: os.path.getsize(name) for name in sorted(os.listdir())}",
        },
        {"type": "input_file", "file_id": uploaded.id},
        {"type": "input_file", "file_data": data, "filename": "given.csv"},
    ]
    request = {"model": "scripted", "tools": [AUTO], "include": OUTPUTS}
    response = client.responses.create(input=[{"role": "user", "content": parts}], **request)

    assert logs_of(calls_of(response)[0]) == "{'a b.csv': 1, 'given.csv': 2}"


def test_files_of_one_name_get_distinct_paths(client):
    uploads = [client.files.create(file=("a.csv", content), purpose="user_data").id for content in (b"1", b"2")]
    inline = [(b"3", "a.csv"), (b"4", "there/a.csv"), (b"5", "b.csv")]
    parts = [
        {"type": "input_text", "text": "# run\nimport os\n[open(name).read() for name in sorted(os.listdir())]"},
        *({"type": "input_file", "file_id": one} for one in uploads),
        *(
            {"type": "input_file", "file_data": base64.b64encode(content).decode(), "filename": name}
            for content, name in inline
        ),
    ]
    response = run(client, "", input=[{"role": "user", "content": parts}])

    assert sorted(ast.literal_eval(logs_of(calls_of(response)[0]))) == ["1", "2", "3", "4", "5"]


def test_a_file_that_the_model_cannot_read_is_readable_by_code(client):
    uploaded = client.files.create(file=("a.xlsx", b"PK\x00\xff"), purpose="user_data")
    parts = [
        {"type": "input_text", "text": "# run\nopen('a.xlsx', 'rb').read(), open('b.bin', 'rb').read()"},
        {"type": "input_file", "file_id": uploaded.id},
        {"type": "input_file", "file_data": base64.b64encode(b"\x00\xff").decode(), "filename": "b.bin"},
    ]
    response = run(client, "", input=[{"role": "user", "content": parts}])

    assert logs_of(calls_of(response)[0]) == "(b'PK\\x00\\xff', b'\\x00\\xff')"


def test_a_file_that_the_code_has_changed_stays_changed(client):
    uploaded = client.files.create(file=("data.txt", b"old"), purpose="user_data")
    data = base64.b64encode(b"old").decode()
    parts = [
        {"type": "input_text", "text": "# run\nfor name in ('data.txt', 'given.txt'): open(name, 'w').write('new')"},
        {"type": "input_file", "file_id": uploaded.id},
        {"type": "input_file", "file_data": data, "filename": "given.txt"},
    ]
    request = {"model": "scripted", "tools": [AUTO], "include": OUTPUTS}
    first = client.responses.create(input=[{"role": "user", "content": parts}], **request)
    second = run(client, "open('data.txt').read(), open('given.txt').read()", previous_response_id=first.id)

    assert logs_of(calls_of(second)[0]) == "('new', 'new')"


# ── state ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_calls_of_one_response_share_variables(client):
    response = client.responses.create(model="scripted", input="twice", tools=[AUTO], include=OUTPUTS)

    assert response.output_text == "(20, 21)"
    assert len({item.container_id for item in calls_of(response)}) == 1
    assert [item.code for item in calls_of(response)] == ["x = 20", "y = x + 1", "x, y"]


def test_responses_share_a_named_container(client):
    container = client.containers.create(name="shared")
    tool = {"type": "code_interpreter", "container": container.id}
    first = run(client, "x = 20; open('x.txt', 'w').write('kept')", tools=[tool])
    second = run(client, "x + 1, open('x.txt').read()", tools=[tool])

    assert second.output_text == "(21, 'kept')"
    assert [calls_of(one)[0].container_id for one in (first, second)] == [container.id, container.id]


def test_responses_share_the_container_of_their_history(client):
    first = run(client, "x = 20")
    chained = run(client, "x + 1", previous_response_id=first.id)
    assert chained.output_text == "21"
    assert calls_of(chained)[0].container_id == calls_of(first)[0].container_id

    replayed = [*(item.to_dict() for item in first.output), {"role": "user", "content": "# run\nx + 2"}]
    assert run(client, "", input=replayed).output_text == "22"

    alone = run(client, "'x' in globals()")
    assert alone.output_text == "False"
    assert calls_of(alone)[0].container_id != calls_of(first)[0].container_id


def test_a_conversation_keeps_its_container(client):
    conversation = client.conversations.create()
    run(client, "x = 20", conversation=conversation.id)

    assert run(client, "x + 1", conversation=conversation.id).output_text == "21"


def test_another_memory_limit_is_another_container(client):
    first = run(client, "1")
    larger = {"type": "code_interpreter", "container": {"type": "auto", "memory_limit": "4g"}}
    second = run(client, "1", tools=[larger], previous_response_id=first.id)

    assert calls_of(first)[0].container_id != calls_of(second)[0].container_id
    assert client.containers.retrieve(calls_of(second)[0].container_id).memory_limit == "4g"


def test_a_response_that_runs_no_code_makes_no_container(client):
    before = {one.id for one in client.containers.list(limit=100)}
    response = client.responses.create(model="scripted", input="nothing", tools=[AUTO])

    assert response.output_text == "I need no code."
    assert {one.id for one in client.containers.list(limit=100)} == before


def test_output_is_in_the_history_without_include(client):
    first = run(client, "'a secret number: ' + str(6 * 7)", include=[])
    assert calls_of(first)[0].outputs is None
    kept = client.responses.retrieve(first.id, include=OUTPUTS)

    assert logs_of(calls_of(kept)[0]) == "'a secret number: 42'"
    assert calls_of(client.responses.retrieve(first.id))[0].outputs is None


def test_stdout_stderr_and_exit_code_are_returned_if_included(client):
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    include = [*OUTPUTS, "antwort:code_interpreter_call.result"]
    response = run(client, code, include=include)
    (call,) = calls_of(response)
    assert call.model_extra["antwort:result"] == {"stdout": "out\n", "stderr": "err\n", "exit_code": 3}
    assert "antwort:result" not in calls_of(client.responses.retrieve(response.id))[0].model_extra
    (call,) = calls_of(client.responses.retrieve(response.id, include=include))
    assert call.model_extra["antwort:result"]["exit_code"] == 3

    (raised,) = calls_of(run(client, "1 / 0", include=include))
    assert raised.model_extra["antwort:result"]["exit_code"] == 1
    assert "ZeroDivisionError" in raised.model_extra["antwort:result"]["stderr"]
    streamed = list(
        client.responses.create(
            model="scripted", input="# run\nprint('streamed')", tools=[AUTO], include=include, stream=True
        )
    )
    (done,) = [e.item for e in streamed if e.type == "response.output_item.done" and "code" in e.item.type]
    assert done.model_extra["antwort:result"] == {"stdout": "streamed\n", "stderr": "", "exit_code": 0}


def test_a_function_and_code_and_structured_output_in_one_response(client):
    request = {"model": "scripted", "tools": [AUTO, WEATHER], "text_format": Weather, "include": OUTPUTS}
    first = client.responses.parse(input="both", **request)
    assert [item.type for item in first.output] == ["code_interpreter_call", "function_call"]
    assert logs_of(first.output[0]) == "42"
    assert json.loads(first.output[1].arguments) == {"city": "Berlin"}

    answer = {"type": "function_call_output", "call_id": first.output[1].call_id, "output": "21 degrees"}
    second = client.responses.parse(input=[answer], previous_response_id=first.id, **request)
    assert second.output_parsed == Weather(degrees=21)
    assert [item.type for item in second.output] == ["code_interpreter_call", "message"]
    assert second.output[0].container_id == first.output[0].container_id


def test_a_background_response_runs_code(client):
    response = run(client, "6 * 7", background=True)
    for _ in range(600):
        response = client.responses.retrieve(response.id, include=OUTPUTS)
        if response.status not in ("queued", "in_progress"):
            break
        time.sleep(0.05)

    assert response.status == "completed"
    assert logs_of(calls_of(response)[0]) == "42"


def test_tool_choice_forces_and_forbids_code(client):
    forced = run(client, "1", tool_choice={"type": "code_interpreter"})
    assert len(calls_of(forced)) == 1
    capped = client.responses.create(model="scripted", input="twice", tools=[AUTO], max_tool_calls=1)
    assert len(calls_of(capped)) == 1


# ── failures ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_exception_is_a_completed_call_with_its_traceback(client):
    response = run(client, "print('before')\n1 / 0")
    (item,) = calls_of(response)

    assert item.status == "completed"
    assert logs_of(item).startswith("before\n")
    assert "ZeroDivisionError" in logs_of(item)
    assert "ZeroDivisionError" in response.output_text


def test_out_of_memory_is_a_failed_call_and_the_next_gets_a_new_sandbox(client):
    response = run(client, "x = [bytearray(64 << 20) for _ in range(64)]")
    (item,) = calls_of(response)
    assert item.status == "failed"
    assert "more memory" in response.output_text
    assert response.status == "completed"

    again = run(client, "'x' in globals()", previous_response_id=response.id)
    assert calls_of(again)[0].container_id == item.container_id
    assert logs_of(calls_of(again)[0]) == "False"
    assert "restarted" in again.output_text


def test_an_interpreter_that_exits_is_a_failed_call(client):
    response = run(client, "import os\nprint('last words', flush=True)\nos._exit(3)")
    (item,) = calls_of(response)

    assert item.status == "failed"
    assert logs_of(item).startswith("last words\n")
    assert "code 3" in logs_of(item)


def test_the_model_retries_after_invalid_arguments(client):
    response = client.responses.create(model="scripted", input="broken", tools=[AUTO], include=OUTPUTS)

    assert [item.status for item in calls_of(response)] == ["failed", "completed"]
    assert "not valid JSON" in logs_of(calls_of(response)[0])
    assert response.output_text == "'repaired'"


def test_five_megabytes_of_code(client):
    response = run(client.with_options(timeout=300), f"x = '{'a' * 5_000_000}'\nlen(x)")  # a million fragments

    assert logs_of(calls_of(response)[0]) == "5000000"
    assert len(calls_of(response)[0].code) > 5_000_000


def test_code_past_the_limit_is_refused_with_a_reason(client):
    response = run(client.with_options(timeout=300), f"x = '{'a' * 6_000_000}'\nlen(x)")

    assert calls_of(response)[0].status == "failed"
    assert "more than" in response.output_text
    assert response.status == "completed"


def test_a_full_disk_raises_in_the_code(client):
    response = run(client, "for n in range(2000): open(str(n), 'wb').write(bytes(1 << 20))")
    (item,) = calls_of(response)

    assert item.status == "completed"
    assert "No space left" in logs_of(item)
    assert logs_of(calls_of(run(client, "1 + 1", previous_response_id=response.id))[0]) == "2"


def test_long_output_is_truncated_and_more_so_for_the_model(client):
    response = run(client, "print('x' * 30_000_000)\n'the end'")
    logs = logs_of(calls_of(response)[0])

    assert 900_000 < len(logs) < 12_000_000
    assert logs.endswith("'the end'")
    assert "bytes cut" in logs
    assert len(response.output_text) < 60_000


@pytest.mark.parametrize(
    "backend, why",
    [
        ("local", "was lost"),
        ("sandbox_url", "did not run to its end"),
        pytest.param("claims", "PodFailed", marks=pytest.mark.kubernetes),
    ],
)
def test_a_sandbox_server_killed_during_a_call(backend, why, tmp_path):
    with code_server(backend, tmp_path) as server, server.client() as client:
        sleeps = "import time; time.sleep(60)"
        response = run_with_callback(client, sleeps, lambda: os.kill(sandbox_pid(server), signal.SIGKILL))
        (item,) = calls_of(response)
        assert (response.status, item.status) == ("completed", "failed")
        assert logs_of(item).startswith("begun\n")
        assert why in logs_of(item)
        if server.sandbox is not None:
            server.sandbox.kill()  # it is dead, and now it is waited for too
            server.sandbox.start()
        again = run(client, "1 + 1", previous_response_id=response.id)
        assert logs_of(calls_of(again)[0]) == "2"
        assert calls_of(again)[0].container_id == item.container_id


# ── refused requests ──────────────────────────────────────────────────────────────────────────────────────────────────


def refused(client, container, **more) -> openai.APIStatusError:
    tool = {"type": "code_interpreter", "container": container}
    with pytest.raises(openai.APIStatusError) as caught:
        client.responses.create(model="scripted", input="# run\n1", tools=[tool], stream=True, **more)
    return caught.value


def test_a_missing_container_is_refused(client):
    error = refused(client, "cntr_00000000000000000000000000000000")
    assert (error.status_code, error.code) == (404, "not_found")


def test_a_deleted_container_is_refused(client):
    container = client.containers.create(name="short")
    client.containers.delete(container.id)
    assert refused(client, container.id).status_code == 404


@pytest.mark.parametrize(
    "container, param",
    [
        ({"type": "auto", "memory_limit": "2g"}, "tools[0].container"),
        ({"type": "auto", "file_ids": ["file-unknown"]}, "tools[0].container.file_ids"),
        ({"type": "auto", "file_ids": ["file-x"] * 51}, "tools[0].container.file_ids"),
        (
            {"type": "auto", "network_policy": {"type": "allowlist", "allowed_domains": ["a.example"]}},
            "tools[0].container",
        ),
        ({"type": "auto", "host_mounts": []}, "tools[0].container"),
        ({"type": "manual"}, "tools[0].container"),
        (None, "tools[0].container"),
        (7, "tools[0].container"),
    ],
)
def test_an_invalid_container_declaration_is_refused(client, container, param):
    error = refused(client, container)

    assert error.status_code == 400
    assert (error.param or "").startswith(param)


def test_a_missing_or_invalid_attachment_is_refused(client):
    for part, where in (({"file_id": "file-x"}, "file_id"), ({"file_data": "!", "filename": "x"}, "file_data")):
        content = [{"type": "input_file", **part}]
        with pytest.raises(openai.APIStatusError) as caught:
            client.responses.create(model="scripted", input=[{"role": "user", "content": content}], tools=[AUTO])
        assert caught.value.status_code in (400, 404)
        assert caught.value.param == f"input[0].content[0].{where}"


# ── tenants, quotas and expiry ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("backend", BACKENDS)
def test_tenants_are_isolated(backend, tmp_path):
    keys = [create_key(tmp_path, name, "--tenant", name) for name in ("a", "b")]
    with (
        code_server(backend, tmp_path, auth={"keys_file": "keys.json"}) as server,
        server.client(keys[0]) as owner,
        server.client(keys[1]) as other_tenant,
    ):
        first = run(owner, "x = 1; open('x.txt', 'w').write('x')")
        (item,) = calls_of(first)
        (file,) = owner.containers.files.list(item.container_id).data
        assert refused(other_tenant, item.container_id).status_code == 404
        with pytest.raises(openai.NotFoundError):
            other_tenant.containers.retrieve(item.container_id)
        with pytest.raises(openai.NotFoundError):
            other_tenant.containers.files.content.retrieve(file.id, container_id=item.container_id)
        replayed = [
            *(one.to_dict() for one in first.output),
            {"role": "user", "content": "# run\n'x' in globals()"},
        ]
        replayed_by_other = run(other_tenant, "", input=replayed)
        assert replayed_by_other.output_text == "False"
        assert calls_of(replayed_by_other)[0].container_id != item.container_id
        uploaded = owner.files.create(file=("a.csv", b"1"), purpose="user_data")
        assert refused(other_tenant, {"type": "auto", "file_ids": [uploaded.id]}).status_code == 400


@pytest.mark.parametrize("backend", BACKENDS)
def test_auto_containers_are_evicted_past_max_containers(backend, tmp_path):
    with code_server(backend, tmp_path, containers={"max_containers": 3}) as server, server.client() as client:
        kept = client.containers.create(name="mine")
        answers = [run(client, f"{number} * 2") for number in range(6)]

        assert [answer.output_text for answer in answers] == [str(number * 2) for number in range(6)]
        status = {one.id: one.status for one in client.containers.list(order="asc")}
        made = [status[calls_of(answer)[0].container_id] for answer in answers]
        assert made == ["expired"] * 4 + ["running"] * 2
        assert status[kept.id] == "running"
        assert metric(server, "antwort_sandboxes") == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_more_concurrent_responses_than_max_containers_all_run(backend, tmp_path):
    with code_server(backend, tmp_path, containers={"max_containers": 4}) as server, server.client() as client:
        with ThreadPoolExecutor(20) as many:
            answers = list(many.map(lambda number: run(client, f"{number} * 2"), range(20)))

        assert [answer.output_text for answer in answers] == [str(number * 2) for number in range(20)]
        assert [one.status for one in client.containers.list(limit=100)].count("running") == 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_container_does_not_expire_while_the_model_generates(backend, tmp_path):
    think = [
        {"when": {"text": "think", "turn": 1}, "reply": [call("x = 20")]},
        {"when": {"text": "think", "turn": 2}, "reply": [{"delay": 5}, call("x + 1")]},
        {"when": {"text": "think", "turn": 3}, "reply": [{"text": "<<output>>"}]},
    ]
    settings = {"script": {**SCRIPT, "answers": think}, "containers": {"expires_after": 0.04}}
    with code_server(backend, tmp_path, **settings) as server, server.client() as client:
        response = client.responses.create(model="scripted", input="think", tools=[AUTO])

        assert response.output_text == "21"
        assert len({item.container_id for item in calls_of(response)}) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_expired_container_is_refused_by_name_and_replaced_in_a_history(backend, tmp_path):
    with code_server(backend, tmp_path, containers={"expires_after": 0.03}) as server, server.client() as client:
        first = run(client, "x = 1")
        (item,) = calls_of(first)
        deadline = time.monotonic() + 30
        while client.containers.list().data[0].status != "expired":
            assert time.monotonic() < deadline
            time.sleep(0.1)
        error = refused(client, item.container_id)
        assert (error.status_code, error.body) == (
            400,
            {"message": "Container is expired.", "type": "invalid_request_error", "param": None, "code": None},
        )
        again = run(client, "'x' in globals()", previous_response_id=first.id)
        assert again.output_text == "False"
        assert calls_of(again)[0].container_id != item.container_id


# ── settings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("backend", BACKENDS)
def test_timeout_and_output_size_follow_the_configuration(backend, tmp_path):
    settings = {"execution_timeout": 1, "max_output_size": 2000, "outputs": "always"}
    with code_server(backend, tmp_path, settings) as server, server.client() as client:
        slow = run(client, "x = 1\nprint('begun', flush=True)\nwhile True: pass", include=[])
        (item,) = calls_of(slow)
        assert item.status == "failed"
        assert logs_of(item).startswith("begun\n")
        assert "more than 1 s" in logs_of(item)
        assert run(client, "x", previous_response_id=slow.id).output_text == "1"

        container = client.containers.create(name="x")
        pictures = "import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show()\n"
        ran = execute(client, container.id, f"{pictures}print('y' * 100_000)\n'z' * 1000")
        assert ran["images"] == []
        assert len(ran["result"] + "".join(one["text"] for one in ran["output"])) < 2200
        assert ran["cut_bytes"] > 98_000
        with server.http() as http:
            body = {"code": "print('y' * 100_000)", "stream": True}
            streamed = http.post(f"/v1/containers/{container.id}/exec", json=body).text
        assert len(streamed) < 6000

        long = run(client, "print('y' * 100_000)", include=[])
        assert len(logs_of(calls_of(long)[0])) < 2100
        assert "bytes cut" in logs_of(calls_of(long)[0])


def test_logs_contain_neither_code_nor_data(server, client):
    run(client, "secret = 'the-cats-name-is-Muschi'\nprint(secret)\nopen('Muschi.txt', 'w').write(secret)")
    run(client, "raise ValueError('the-cats-name-is-Muschi')")

    assert "Muschi" not in server.read_log()
    executed = [json.loads(line) for line in server.read_log().splitlines() if '"container.execute"' in line]
    assert executed
    assert {"action", "object_id", "tier", "status", "ms", "printed"} <= executed[-1].keys()
