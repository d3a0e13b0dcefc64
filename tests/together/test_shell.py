"""Hosted shell, with the real server, the real SDK and a session that builds and tests a small project."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import tarfile
import time

import openai
import pytest
from fixtures_code_interpreter import AUTO, BACKENDS, OUTPUTS, code_server, logs_of, sandbox_pid
from fixtures_server import create_key
from fixtures_shell import BOTH, SCRIPT, SHELL, shell, shell_calls, shell_outputs

PROJECT = [
    [
        shell(
            "git init -q . && git config user.name Me && git config user.email me@example.com",
            "mkdir -p calc tests && cat > calc/__init__.py <<'EOF'\ndef add(a, b):\n    return a - b\nEOF",
            "cat > tests/test_calc.py <<'EOF'\nimport unittest\nfrom calc import add\n\nclass T(unittest.TestCase):\n"
            "    def test_add(self):\n        self.assertEqual(add(2, 3), 5)\nEOF\ntouch tests/__init__.py",
            "git add -A && git commit -qm 'first' && python3 -m unittest -q",
        )
    ],
    [shell("grep -n 'a - b' calc/__init__.py", "sed -i 's/a - b/a + b/' calc/__init__.py && git diff | cat")],
    [
        {
            "call": {
                "name": "code_interpreter",
                "arguments": {
                    "code": "import sys; sys.path.insert(0, '/mnt/data'); sys.dont_write_bytecode = True\n"
                    "from calc import add\nopen('README.md', 'w').write('# calc\\n')\nadd(2, 3)"
                },
            }
        }
    ],
    [
        shell(
            "python3 -m unittest -q && git add README.md calc && git commit -qm 'fix' && git log --format=%s",
            "awk 'END { print NR }' README.md; cat README.md; git status --short",
        )
    ],
    [{"text": "Fixed: see [the module](sandbox:/mnt/data/calc/__init__.py)."}],
]


def scripted(directory, **scripts):
    """Models with a script of their own, beside the default one."""
    models = {"default": "scripted", "scripted": {"kind": "scripted", "script": "script.yaml"}}
    for name, replies in scripts.items():
        answers = [{"when": {"turn": turn}, "reply": reply} for turn, reply in enumerate(replies, 1)]
        (directory / f"{name}.yaml").write_text(json.dumps({"fragment": 6, "answers": answers}), encoding="utf-8")
        models[name] = {"kind": "scripted", "script": f"{name}.yaml"}
    return models


@pytest.fixture(scope="module", params=BACKENDS)
def server(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("server")
    models = scripted(
        directory,
        project=PROJECT,
        slow=[[shell("echo begun; sleep 60", "echo second")], [{"text": "<<output>>"}]],
        limited=[
            [shell("seq 1 1000; seq 1 1000 >&2", max_output_length=300), shell("sleep 60; true", timeout_ms=300)],
            [{"text": "Done."}],
        ],
    )
    containers = {"max_containers": 500}
    with code_server(request.param, directory, script=SCRIPT, models=models, containers=containers) as running:
        yield running


@pytest.fixture
def client(server):
    with server.client() as client:
        yield client


def run(client, command: str, **more):
    request = {"model": "scripted", "input": f"# shell\n{command}", "tools": [SHELL], **more}
    return client.responses.create(**request)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_session_builds_tests_and_commits_a_project_with_both_tools(client, stream):
    request = {"model": "project", "input": "Build it.", "tools": BOTH, "include": OUTPUTS}
    if stream:
        with client.responses.create(**request, stream=True) as events:
            *_, last = events
        response = last.response
    else:
        response = client.responses.create(**request)

    ends = [entry.outcome.exit_code for entry in shell_outputs(response)]
    assert ends == [0, 0, 0, 1, 0, 0, 0, 0]
    outputs = shell_outputs(response)
    assert "FAIL" in outputs[3].stderr
    assert outputs[4].stdout == "2:    return a - b\n"
    assert "+    return a + b" in outputs[5].stdout
    assert (outputs[6].stdout, "OK" in outputs[6].stderr) == ("fix\nfirst\n", True)
    assert outputs[7].stdout == "1\n# calc\n"
    (code,) = [item for item in response.output if item.type == "code_interpreter_call"]
    assert logs_of(code) == "5"
    assert {call.environment.container_id for call in shell_calls(response)} == {code.container_id}
    files = {file.path: file.source for file in client.containers.files.list(code.container_id, limit=100)}
    assert files["/mnt/data/calc/__init__.py"] == "assistant"
    (annotation,) = response.output[-1].content[0].annotations
    assert annotation.filename == "__init__.py"


def test_items_of_a_call(client):
    response = run(client, "echo out; echo err >&2; exit 4")
    call, output, message = response.output

    assert (call.type, call.status, call.action.commands) == (
        "shell_call",
        "completed",
        ["# shell\necho out; echo err >&2; exit 4"],
    )
    assert call.id.startswith("sh_")
    assert call.environment.type == "container_reference"
    assert output.id.startswith("sho_")
    assert (output.type, output.status, output.call_id) == ("shell_call_output", "completed", call.call_id)
    assert [entry.to_dict() for entry in output.output] == [
        {"outcome": {"type": "exit", "exit_code": 4}, "stderr": "err\n", "stdout": "out\n"}
    ]
    assert message.content[0].text == "out\nerr\n(exit code 4)"
    assert client.responses.retrieve(response.id).to_dict()["output"] == response.to_dict()["output"]
    assert client.containers.retrieve(call.environment.container_id).status == "running"


def test_events_are_parsed_by_the_sdk_and_output_is_live(client):
    kinds, texts = [], {"stdout": "", "stderr": ""}
    with client.responses.create(
        model="scripted", input="# shell\necho a; sleep 0.3; echo b; echo c >&2", tools=[SHELL], stream=True
    ) as events:
        for event in events:
            kinds.append(event.type)
            if event.type == "response.shell_call_output_content.delta":
                for name, text in event.to_dict()["delta"].items():
                    texts[name] += text

    assert texts == {"stdout": "a\nb\n", "stderr": "c\n"}
    assert kinds.count("response.shell_call_output_content.delta") >= 2
    assert kinds.count("response.shell_call_command.done") == 1


def test_output_and_time_are_limited(client):
    response = client.responses.create(model="limited", input="x", tools=[SHELL])
    first, second = shell_outputs(response)

    assert len(first.stdout) + len(first.stderr) <= 300
    assert first.stdout.startswith("1\n2\n")
    assert first.stdout.endswith("1000\n")
    assert second.outcome.type == "timeout"
    assert [item.max_output_length for item in response.output if item.type == "shell_call_output"] == [300, None]
    assert [call.action.timeout_ms for call in shell_calls(response)] == [None, 300]


def test_a_chained_response_and_a_replayed_history_use_the_same_container(client):
    first = run(client, "echo kept > kept.txt")
    container = shell_calls(first)[0].environment.container_id
    second = run(client, "cat kept.txt", previous_response_id=first.id)
    replayed = [
        *(item.to_dict() for item in first.output),
        {"role": "user", "content": "# python\nopen('kept.txt').read()"},
    ]
    third = client.responses.create(model="scripted", input=replayed, tools=[AUTO], include=OUTPUTS)

    reference = {"type": "container_reference", "container_id": container}
    assert first.tools[0].environment.to_dict() == second.tools[0].environment.to_dict() == reference
    assert shell_outputs(second)[0].stdout == "kept\n"
    assert shell_calls(second)[0].environment.container_id == container
    assert third.output_text == repr("kept\n")


def test_a_named_container_with_uploaded_files(client):
    uploaded = client.files.create(file=("data.csv", b"a,b\n1,2\n"), purpose="user_data")
    container = client.containers.create(name="mine", file_ids=[uploaded.id])
    tool = {"type": "shell", "environment": {"type": "container_reference", "container_id": container.id}}
    response = run(client, "cut -d, -f2 data.csv; ls", tools=[tool])

    assert shell_outputs(response)[0].stdout == "b\n2\ndata.csv\n"
    assert shell_calls(response)[0].environment.container_id == container.id
    auto = {"type": "shell", "environment": {"type": "container_auto", "file_ids": [uploaded.id]}}
    assert shell_outputs(run(client, "cat data.csv", tools=[auto]))[0].stdout == "a,b\n1,2\n"


@pytest.mark.parametrize(
    "environment, param, message",
    [
        ({"type": "container_auto", "memory_limit": "3g"}, "tools[0]", "memory_limit"),
        (
            {"type": "container_auto", "network_policy": {"type": "allowlist", "allowed_domains": ["a.example"]}},
            "tools[0].environment.network_policy",
            "no network",
        ),
        ({"type": "container_auto", "file_ids": ["file-nothing"]}, "tools[0].environment.file_ids", "not found"),
        ({"type": "container_auto", "host_mounts": []}, "tools[0].environment", "host_mounts"),
        ({"type": "container_reference", "container_id": "cntr_nothing"}, None, "not found"),
        ({"type": "container_reference"}, "tools[0].environment", "container_id"),
        ({"type": "somewhere"}, "tools[0].environment", "somewhere"),
    ],
)
def test_invalid_environments_are_refused_by_name(client, environment, param, message):
    with pytest.raises(openai.APIStatusError) as raised:
        run(client, "true", tools=[{"type": "shell", "environment": environment}])

    assert raised.value.status_code in (400, 404)
    assert message in raised.value.message
    assert param is None or (raised.value.param or "").startswith(param)


def test_two_tools_with_different_memory_limits_are_refused(client):
    tools = [
        {"type": "shell", "environment": {"type": "container_auto", "memory_limit": "1g"}},
        {"type": "code_interpreter", "container": {"type": "auto", "memory_limit": "4g"}},
    ]
    with pytest.raises(openai.BadRequestError, match="memory_limit") as raised:
        run(client, "true", tools=tools)
    assert raised.value.param == "tools[1].container.memory_limit"


def test_tool_choice_and_max_tool_calls(client):
    forced = client.responses.create(
        model="scripted", input="forever", tools=[SHELL], tool_choice={"type": "shell"}, max_tool_calls=2
    )
    none = client.responses.create(model="scripted", input="forever", tools=[SHELL], tool_choice="none")

    assert len(shell_calls(forced)) == 2
    assert shell_calls(none) == []


def test_an_expired_or_lost_sandbox(client, server):
    first = run(client, "echo x > x")
    container = shell_calls(first)[0].environment.container_id
    run_code = {"model": "scripted", "input": "# python\nimport os; os._exit(1)", "tools": [AUTO]}
    client.responses.create(**run_code, previous_response_id=first.id)
    after = run(client, "ls", previous_response_id=first.id)

    assert shell_calls(after)[0].environment.container_id == container
    assert shell_outputs(after)[0].stdout == ""
    assert "restarted" in after.output_text
    client.containers.delete(container)
    replaced = run(client, "ls", previous_response_id=first.id)
    assert shell_calls(replaced)[0].environment.container_id != container


def test_a_command_that_ends_the_sandbox(client):
    response = run(client, "kill -9 -1; sleep 5")

    (entry,) = shell_outputs(response)
    assert entry.outcome.exit_code != 0
    assert response.status == "completed"


def test_a_sandbox_server_that_dies_during_a_command(server, client):
    if server.cluster is not None:
        pytest.skip("the pods are restarted by the cluster")
    outputs, response = [], None
    with client.responses.create(model="slow", input="x", tools=[SHELL], stream=True) as events:
        for event in events:
            if event.type == "response.shell_call_output_content.delta" and not outputs:
                if server.sandbox is not None:
                    pytest.skip("one sandbox server serves the module")
                os.kill(sandbox_pid(server), signal.SIGKILL)
            if event.type == "response.shell_call_output_content.done":
                outputs.append(event.to_dict()["output"][0])
            response = getattr(event, "response", response)

    assert response is not None
    assert [output["stdout"] for output in outputs] == ["begun\n"], "the second command is not run"
    assert "lost" in outputs[0]["stderr"]
    assert outputs[0]["outcome"] == {"type": "exit", "exit_code": -1}
    assert response.status == "completed"
    assert shell_outputs(run(client, "echo again"))[0].stdout == "again\n"


def test_a_cancelled_response_ends_its_command(client):
    response, identifier = (
        client.responses.create(model="slow", input="x", tools=[SHELL], background=True, stream=True),
        "",
    )
    with response as events:
        for event in events:
            if event.type == "response.created":
                identifier = event.response.id
            if event.type == "response.shell_call_output_content.delta":
                break
    assert client.responses.cancel(identifier).status == "cancelled"
    stored = client.responses.retrieve(identifier)
    container = shell_calls(stored)[0].environment.container_id
    tool = {"type": "shell", "environment": {"type": "container_reference", "container_id": container}}
    assert shell_outputs(run(client, "jobs; echo free", tools=[tool]))[0].stdout == "free\n"


@pytest.mark.long
def test_a_killed_server_does_not_run_the_command_again(tmp_path):
    models = scripted(
        tmp_path, counting=[[shell("echo begun; echo x >> /mnt/data/count; sleep 60")], [{"text": "<<output>>"}]]
    )
    with code_server("local", tmp_path, script=SCRIPT, models=models) as server:
        with server.client() as client:
            identifier = ""
            events = client.responses.create(model="counting", input="x", tools=[SHELL], background=True, stream=True)
            for event in events:
                if event.type == "response.created":
                    identifier = event.response.id
                if event.type == "response.shell_call_output_content.delta":
                    break
            server.kill()
        server.start()
        with server.client() as client:
            deadline = time.monotonic() + 60
            while (stored := client.responses.retrieve(identifier)).status in ("queued", "in_progress"):
                assert time.monotonic() < deadline
                time.sleep(0.1)

    assert stored.status == "completed"
    assert len(shell_calls(stored)) == 1
    assert "was stopped while this call ran" in stored.output_text


def test_containers_of_another_tenant_are_not_found(tmp_path):
    keys = [create_key(tmp_path, tenant, "--tenant", tenant) for tenant in ("one", "two")]
    with code_server("local", tmp_path, script=SCRIPT, auth={"keys_file": "keys.json"}) as server:
        one, two = map(server.client, keys)
        with one, two:
            first = run(one, "echo secret > secret")
            container = shell_calls(first)[0].environment.container_id
            tool = {"type": "shell", "environment": {"type": "container_reference", "container_id": container}}
            with pytest.raises(openai.NotFoundError):
                run(two, "ls", tools=[tool])
            replayed = [*(item.to_dict() for item in first.output), {"role": "user", "content": "# shell\nls"}]
            stolen = two.responses.create(model="scripted", input=replayed, tools=[SHELL])
            assert shell_calls(stolen)[-1].environment.container_id != container
            assert shell_outputs(stolen)[0].stdout == ""


def test_git_works_in_a_new_and_in_an_uploaded_repository(client, tmp_path):
    """Without an identity of the user, and with files of another owner."""
    repository = tmp_path / "tea"
    repository.mkdir()
    (repository / "a.txt").write_text("oolong\n", encoding="utf-8")
    identity = ["-c", "user.name=Ada", "-c", "user.email=ada@tea.example"]
    for arguments in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "from outside"]):
        subprocess.run(["git", *arguments], cwd=repository, check=True)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(repository, "tea")
    uploaded = client.files.create(file=("tea.tar", archive.getvalue()), purpose="user_data")
    tool = {"type": "shell", "environment": {"type": "container_auto", "file_ids": [uploaded.id]}}
    commands = [
        "(git init -q new && cd new && echo 1 > x && git add x && git commit -qm one && git log --format=%s)",
        "(tar xf tea.tar && cd tea && echo sencha >> a.txt && git commit -qam two && git log --format=%s)",
        "git config --system safe.directory",
    ]
    response = client.responses.create(model="scripted", input="# shell\n" + "\n".join(commands), tools=[tool])
    (entry,) = shell_outputs(response)

    assert (entry.stdout, entry.outcome.exit_code) == ("one\ntwo\nfrom outside\n*\n", 0)
    assert "/tea/a.txt" in response.output_text
    assert ".git/" not in response.output_text
    container = shell_calls(response)[0].environment.container_id
    assert any("/.git/" in file.path for file in client.containers.files.list(container, limit=100))
