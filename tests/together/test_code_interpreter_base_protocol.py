"""Code interpreter with a `sandbox_url` that speaks only the base protocol (`/health`, `/execute`)."""

from __future__ import annotations

import base64
import io
import struct
import tarfile
import zlib

import openai
import pytest
from fake_base_sandbox import base_sandbox
from fake_upstream import FakeUpstream, running_upstream
from fixtures_code_interpreter import call, calls_of, logs_of, run
from fixtures_server import run_server

from antwort.testing.model import ModelAnswer

RESULT = "antwort:code_interpreter_call.result"
SAVE = "import os; open(os.environ['OUTPUT_DIR'] + '/report.csv', 'w').write('a,b\\n')"
SCRIPT = {
    "answers": [
        {"when": {"text": "/^# run/", "turn": 1}, "reply": [call("<<text>>")]},
        {"when": {"text": "/^# needs/", "turn": 1}, "reply": [call("1", requirements=["nothing"])]},
        {"when": {"text": "report", "turn": 1}, "reply": [call(SAVE)]},
        {"when": {"text": "report", "turn": 2}, "reply": [{"text": "See [it](sandbox:/mnt/data/report.csv)."}]},
        {"reply": [{"text": "<<output>>"}]},
    ],
}


def png() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head, pixels = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0), zlib.compress(b"\0\0")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def sandbox():
    with base_sandbox() as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def server(tmp_path_factory, sandbox):
    settings = {"sandbox_url": sandbox.url, "execution_timeout": 2, "claim_timeout": 5}
    config = {"providers": {"code_interpreter": {"enabled": True, **settings}}}
    with run_server(tmp_path_factory.mktemp("server"), config, script=SCRIPT) as server:
        yield server


@pytest.fixture
def client(server):
    with server.client() as client:
        yield client


def test_a_base_protocol_sandbox_runs_one_execution_per_call(client, sandbox):
    before = len(sandbox.requests)
    response = run(client, "print(6 * 7)")
    (ran,) = calls_of(response)
    assert (ran.status, logs_of(ran).strip()) == ("completed", "42")
    assert response.output_text.strip() == "42"
    assert [request["code"] for request in sandbox.requests[before:]] == ["# run\nprint(6 * 7)"]
    assert sandbox.requests[-1]["timeout_seconds"] == 2


def test_variables_do_not_persist_and_the_model_is_informed(client, sandbox):
    first = run(client, "x = 1")
    second = run(client, "print(x)", previous_response_id=first.id)
    assert calls_of(first)[0].container_id == calls_of(second)[0].container_id
    assert "NameError" in logs_of(calls_of(second)[0])


def test_produced_files_become_image_and_logs_outputs(client, sandbox):
    code = f"""import os
out = os.environ["OUTPUT_DIR"]
open(out + "/chart.png", "wb").write({png()!r})
open(out + "/totals.csv", "w").write("city,sold\\nBerlin,3\\n")
open(out + "/data.bin", "wb").write(bytes([0, 255, 0]))
print("done")"""
    (ran,) = calls_of(run(client, code))
    outputs = [(output.type, getattr(output, "logs", None)) for output in ran.outputs]
    assert outputs == [("logs", "done\n"), ("image", None), ("logs", "city,sold\nBerlin,3\n")]
    (image,) = [output.url for output in ran.outputs if output.type == "image"]
    assert image == f"data:image/png;base64,{base64.b64encode(png()).decode()}"
    files = {file.path: file.id for file in client.containers.files.list(ran.container_id)}
    assert set(files) == {f"/mnt/data/{name}" for name in ("chart.png", "totals.csv", "data.bin")}
    content = client.containers.files.content.retrieve(files["/mnt/data/data.bin"], container_id=ran.container_id)
    assert content.read() == bytes([0, 255, 0])


def test_files_persist_between_calls_and_uploads_are_sent_with_a_run(client, sandbox):
    uploaded = client.files.create(file=("sales.csv", b"1,2"), purpose="user_data")
    tool = {"type": "code_interpreter", "container": {"type": "auto", "file_ids": [uploaded.id]}}
    save = "import os; open(os.environ['OUTPUT_DIR'] + '/kept.txt', 'w').write(open('sales.csv').read())"
    first = run(client, save, tools=[tool])
    second = run(client, "print(open('kept.txt').read())", tools=[tool], previous_response_id=first.id)
    assert logs_of(calls_of(second)[0]).strip() == "1,2"
    assert sorted(sandbox.requests[-1]["files"]) == ["kept.txt", "sales.csv"]


def test_a_produced_file_is_cited(client):
    tool = {"type": "code_interpreter", "container": {"type": "auto"}}
    response = client.responses.create(model="scripted", input="report", tools=[tool])
    (citation,) = response.output[-1].content[0].annotations
    assert (citation.type, citation.filename) == ("container_file_citation", "report.csv")


def test_stdout_stderr_and_exit_code_of_a_base_protocol_sandbox(client):
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    (ran,) = calls_of(run(client, code, include=[RESULT]))
    assert ran.model_extra["antwort:result"] == {"stdout": "out\n", "stderr": "err\n", "exit_code": 3}


def test_a_timeout_is_a_failed_call(client):
    (ran,) = calls_of(run(client, "import time; print('begun', flush=True); time.sleep(60)"))
    assert ran.status == "failed"
    assert "begun" in logs_of(ran)
    assert "ran for more than 2 s" in logs_of(ran)
    assert "Variables" not in logs_of(ran)


def test_a_failed_installation_is_the_result_of_the_call(client):
    tool = {"type": "code_interpreter", "container": {"type": "auto"}}
    include = ["code_interpreter_call.outputs"]
    response = client.responses.create(model="scripted", input="# needs", tools=[tool], include=include)
    assert "package installation failed" in logs_of(calls_of(response)[0])


def test_a_sandbox_at_capacity_is_asked_again(client, sandbox):
    sandbox.busy = 2
    assert logs_of(calls_of(run(client, "print('at last')"))[0]) == "at last\n"
    assert sandbox.busy == 0


def test_paths_outside_of_the_container_are_not_kept(client, sandbox):
    sandbox.produces = {"../../evil.txt": b"x", "/etc/evil": b"x", "fine.bin": b"\0"}
    try:
        (ran,) = calls_of(run(client, "pass"))
    finally:
        sandbox.produces = {}
    assert [file.path for file in client.containers.files.list(ran.container_id)] == ["/mnt/data/fine.bin"]
    assert "'../../evil.txt' is not a plain path" in logs_of(ran)


def test_archives_uploads_and_deletion(client, server):
    container = client.containers.create(name="base")
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        member = tarfile.TarInfo("src/a.py")
        member.size = 5
        tar.addfile(member, io.BytesIO(b"x = 1"))
    with server.http() as http:
        assert http.put(f"/v1/containers/{container.id}/archive", content=archive.getvalue()).status_code == 200
        packed = http.get(f"/v1/containers/{container.id}/archive").content
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        assert tar.getnames() == ["src/a.py"]
    (file,) = client.containers.files.list(container.id)
    client.containers.files.delete(file.id, container_id=container.id)
    assert list(client.containers.files.list(container.id)) == []
    with pytest.raises(openai.APIStatusError) as caught:
        client.containers.files.create(container.id, file=("large.bin", bytes(41 << 20)))
    assert "40 MiB" in str(caught.value)
    client.containers.delete(container.id)


def test_the_model_reads_that_calls_are_separate_processes(tmp_path, sandbox):
    with running_upstream() as upstream:
        upstream.set_replies(FakeUpstream.chat(ModelAnswer(text="Hello.")))
        config = {
            "models": {"model": {"kind": "chat_completions", "base_url": upstream.url}},
            "providers": {"code_interpreter": {"enabled": True, "sandbox_url": sandbox.url}},
        }
        with run_server(tmp_path, config) as server, server.client() as client:
            tool = {"type": "code_interpreter", "container": {"type": "auto"}}
            client.responses.create(model="model", input="hello", tools=[tool])
        (function,) = upstream.requests[-1].body["tools"]
        assert "Each call is a new process" in function["function"]["description"]
