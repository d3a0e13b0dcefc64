"""Extensions of the Containers API: archives, and execution of code without a model."""

from __future__ import annotations

import ast
import io
import json
import os
import tarfile
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from fixtures_container_server import execute, files

# ── archives ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def packed(members: dict[str, bytes]) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return whole.getvalue()


def test_an_archive_is_uploaded_and_downloaded(env, client, container):
    members = {f"src/{n}/é.py": os.urandom(n) for n in range(300)}
    with env.http() as http:
        reply = http.put(f"/v1/containers/{container.id}/archive", content=packed(members))
        back = http.get(f"/v1/containers/{container.id}/archive")

    assert reply.json() == {
        "object": "container.archive",
        "container_id": container.id,
        "files": 300,
        "bytes": sum(map(len, members.values())),
    }
    assert {file.source for file in client.containers.files.list(container.id, limit=100)} == {"user"}
    assert back.headers["content-type"] == "application/x-tar"
    with tarfile.open(fileobj=io.BytesIO(back.content)) as archive:
        found = {member.name: archive.extractfile(member).read() for member in archive if member.isfile()}  # pyright: ignore[reportOptionalMemberAccess] - a file has content
    assert found == members


def test_the_archive_of_a_new_container_is_empty(env, container):
    with env.http() as http:
        back = http.get(f"/v1/containers/{container.id}/archive")

    with tarfile.open(fileobj=io.BytesIO(back.content)) as archive:
        assert archive.getnames() == []


@pytest.mark.parametrize(
    "archive",
    [packed({"a.txt": b"x", "../b.txt": b"x"}), packed({"a.txt": b"x"})[:700], b"nonsense" * 1000],
    ids=["leaves", "torn", "none"],
)
def test_an_invalid_archive_is_refused(env, client, container, archive):
    with env.http() as http:
        answer = http.put(f"/v1/containers/{container.id}/archive", content=archive)

    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert set(files(client, container.id)) <= {"/mnt/data/a.txt"}
    assert execute(client, container.id, "1 + 1")["result"] == "2"


# ── code without a model ─────────────────────────────────────────────────────────────────────────────────────────────


def test_code_runs_and_variables_persist(client, container):
    first = execute(client, container.id, "import sys\nx = 20\nprint('out')\nprint('err', file=sys.stderr)\nx + 1")
    second = execute(client, container.id, "x * 2")

    assert set(first) == {
        *("object", "container_id", "status", "output", "result", "images", "files", "duration_ms", "cut_bytes"),
        *("replaced", "lost", "exit_code"),
    }
    assert (first["status"], first["result"], first["replaced"], first["lost"]) == ("ok", "21", False, None)
    assert first["output"] == [{"stream": "stdout", "text": "out\n"}, {"stream": "stderr", "text": "err\n"}]
    assert second["result"] == "40"


def test_an_exception_is_a_result(client, container):
    ran = execute(client, container.id, "print('before')\n1 / 0")

    assert ran["status"] == "error"
    assert "ZeroDivisionError" in "".join(one["text"] for one in ran["output"])


def test_figures_are_images(client, container):
    ran = execute(client, container.id, "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()")

    assert [image["url"][:22] for image in ran["images"]] == ["data:image/png;base64,"]


def test_a_timeout_stops_the_code(client, container):
    ran = execute(client, container.id, "x = 1\nwhile True: pass", timeout=0.5)

    assert ran["status"] == "timeout"
    assert execute(client, container.id, "x")["result"] == "1"


@pytest.mark.parametrize(
    "body, param",
    [
        ({}, "code"),
        ({"code": 3}, "code"),
        ({"code": "1", "timeout": 0}, "timeout"),
        ({"code": "1", "timeout": "x"}, "timeout"),
        ({"code": "1", "requirements": "x"}, "requirements"),
        ({"code": "1", "language": "js"}, "language"),
        ({"code": "  "}, None),
    ],
)
def test_an_invalid_execution_is_refused(client, container, body, param):
    with pytest.raises(openai.BadRequestError) as error:
        client.post(f"/containers/{container.id}/exec", cast_to=object, body=body)

    assert error.value.param == param


def test_five_megabytes_of_code_run(client, container):
    ran = execute(client, container.id, "x = '" + "a" * 5_000_000 + "'\nlen(x)")

    assert ran["result"] == "5000000"


def test_output_is_streamed_and_a_disconnect_stops_the_code(env, client, container):
    body = {"code": "x = 1\nprint('begun', flush=True)\nwhile True: pass", "stream": True}
    with env.http() as http, http.stream("POST", f"/v1/containers/{container.id}/exec", json=body) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        first = next(line for line in stream.iter_lines() if line.startswith("data: "))

    assert json.loads(first.removeprefix("data: ")) == {"type": "exec.output", "stream": "stdout", "text": "begun\n"}
    assert execute(client, container.id, "x")["result"] == "1"


def test_a_stream_ends_with_the_result(env, container):
    with env.http() as http:
        body = {"code": "print('a')\nopen('b', 'w').write('c')", "stream": True}
        text = http.post(f"/v1/containers/{container.id}/exec", json=body).text
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]

    assert [event["type"] for event in events] == ["exec.output", "exec.completed"]
    assert events[-1]["execution"]["status"] == "ok"
    assert [file["path"] for file in events[-1]["execution"]["files"]] == ["/mnt/data/b"]


def test_streaming_from_a_missing_container_is_a_404(env, client):
    with env.http() as http:
        answer = http.post("/v1/containers/cntr_none/exec", json={"code": "1", "stream": True})

    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


def test_executions_of_one_container_are_serialized_in_order(env, client, container):
    execute(client, container.id, "import time\nlog = []")

    def append(number):
        code = f"log.append(('begin', {number}))\ntime.sleep(0.05)\nlog.append(('end', {number}))"
        with env.server.client(env.server.keys["owner"]) as sdk:
            return execute(sdk, container.id, code)["status"]

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(append, range(8))) == {"ok"}
    log = ast.literal_eval(execute(client, container.id, "log")["result"])

    assert [word for word, _ in log] == ["begin", "end"] * 8
    assert [log[at][1] == log[at + 1][1] for at in range(0, 16, 2)] == [True] * 8


def test_containers_are_isolated(client):
    one, other = client.containers.create(name="x"), client.containers.create(name="y")
    execute(client, one.id, "x = 1\nopen('a.txt', 'w').write('secret')")

    assert execute(client, other.id, "x")["status"] == "error"
    assert execute(client, other.id, "import os; os.listdir()")["result"] == "[]"


def test_deleting_a_container_kills_its_code(env, client, container):
    body = {"code": "print('begun', flush=True)\nwhile True: pass", "stream": True}
    with env.http() as http, http.stream("POST", f"/v1/containers/{container.id}/exec", json=body) as stream:
        lines = (line for line in stream.iter_lines() if line.startswith("data: "))
        next(lines)
        client.containers.delete(container.id)
        last = json.loads(list(lines)[-1].removeprefix("data: "))

    assert (last["type"], last["error"]["code"]) == ("error", "not_found")
