"""The embedded model through the server process: answers, process death, and the first start without weights."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import openai
import pytest
from fixtures_server import ROOT, run_server
from local_weights import find_local_weights
from waiting import wait_until

CODE = {"type": "code_interpreter", "container": {"type": "auto"}}


def settings(weights: Path, **more) -> dict:
    model = {"kind": "embedded", "model": str(weights), "context": 4096, "parallel": 1}
    return {"models": {"small": model}, **more}


def children(pid: int) -> list[int]:
    """The llama.cpp processes of a server."""
    listed = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(line.split()[0]) for line in listed.stdout.splitlines() if "antwort.models.embedded.server" in line]


def client_of(server):
    return server.client().with_options(timeout=600)


def kill_during_answer(server, client, killed: dict[str, int]) -> None:
    """Kill the model process after the first text delta; `killed` receives the response id and the process id."""
    response = ""
    with client.responses.create(input="Count from one to a hundred in words.", stream=True) as stream:
        for event in stream:
            if event.type == "response.created":
                response = event.response.id
            if event.type == "response.output_text.delta" and not killed:
                (killed[response],) = children(server.process.pid)
                os.kill(killed[response], signal.SIGKILL)


@pytest.fixture
def weights():
    return find_local_weights()


@pytest.mark.model
def test_the_model_writes_python_and_the_jail_runs_it(tmp_path, weights):
    config = settings(weights, providers={"code_interpreter": {"enabled": True, "outputs": "always"}})
    with run_server(tmp_path, config) as server:
        response = client_of(server).responses.create(
            input="What is the sum of the cubes of the numbers from 1 to 40? Compute it.",
            tools=[CODE],
            tool_choice="required",
            max_tool_calls=1,
        )

    calls = [item for item in response.output if item.type == "code_interpreter_call"]
    assert [call.status for call in calls] == ["completed"]
    assert "672400" in calls[0].outputs[0].logs
    assert "672400" in response.output_text.replace(",", "")


@pytest.mark.model
def test_streaming_and_token_count(tmp_path, weights):
    with run_server(tmp_path, settings(weights)) as server:
        client = client_of(server)
        counted = client.responses.input_tokens.count(model="small", input="Count from one to five in words.")
        with client.responses.stream(model="small", input="Count from one to five in words.") as stream:
            deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
            final = stream.get_final_response()

    assert len(deltas) > 3
    assert "".join(deltas) == final.output_text
    assert final.usage.input_tokens == counted.input_tokens


@pytest.mark.model
def test_killing_the_model_fails_one_response_and_the_next_succeeds(tmp_path, weights):
    with run_server(tmp_path, settings(weights)) as server:
        client = client_of(server)
        assert children(server.process.pid) == []  # the process starts with the first request
        killed: dict[str, int] = {}
        with pytest.raises(openai.APIError, match="ended before it was complete"):
            kill_during_answer(server, client, killed)
        ((response, failed),) = killed.items()
        wait_until(
            lambda: client.responses.retrieve(response).status == "failed"
        )  # the error event precedes the final state

        again = client.responses.create(input="Say hello in one word.")
        (model,) = children(server.process.pid)
        assert again.status == "completed"
        assert model != failed
        server.kill()
    wait_until(lambda: not Path(f"/proc/{model}").exists())


@pytest.mark.model
def test_a_prompt_that_is_too_long_is_a_400(tmp_path, weights):
    with run_server(tmp_path, settings(weights)) as server, pytest.raises(openai.BadRequestError) as caught:
        client_of(server).responses.create(input="word " * 6000)
    assert caught.value.code == "context_length_exceeded"


# ── without weights ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def environment(tmp_path):
    """Environment variables without an upstream and without weights."""
    names = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    return {**kept, "PYTHONPATH": str(ROOT / "src"), "ANTWORT_MODEL_CACHE": str(tmp_path / "no weights")}


def test_missing_weights_of_a_configured_model_stop_the_server_with_options(tmp_path, environment):
    (tmp_path / "antwort.yaml").write_text("models: {small: {kind: embedded}}")
    command = [sys.executable, "-m", "antwort", "serve", "--config", "antwort.yaml", "--port", "0"]
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )

    assert result.returncode == 1
    assert "models.small: The weights of qwen2.5-coder-1.5b are not installed. Options: " in result.stderr


def test_the_banner_names_the_model_and_its_source_and_the_hint_runs(tmp_path, environment):
    (tmp_path / "script.yaml").write_text("answers: [{reply: [{text: The Rhine.}]}]")
    (tmp_path / "antwort.yaml").write_text(
        "models: {m: {kind: scripted, script: script.yaml}}\nproviders: {code_interpreter: {enabled: false}}"
    )
    command = [sys.executable, "-m", "antwort", "serve", "--config", "antwort.yaml", "--port", "0", "--hints"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        banner = ""
        while not banner.endswith("print(response.output_text)\n"):
            line = server.stdout.readline()
            assert line
            banner += line
        program = banner.partition("In Python:\n\n")[2]
        output = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
        server.terminate()
        assert server.wait(30) == 0

    assert "models     m (scripted, the default); unknown names get the default: from the configuration" in banner
    assert output == "The Rhine.\n"


def test_doctor_checks_the_models(tmp_path, environment):
    (tmp_path / "script.yaml").write_text("answers: []")
    (tmp_path / "antwort.yaml").write_text(
        "models: {a: {kind: scripted, script: script.yaml}, b: {kind: responses, base_url: 'http://127.0.0.1:9/v1'}}"
    )
    command = [sys.executable, "-m", "antwort", "doctor", "--config", "antwort.yaml"]
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )

    assert "models         from the configuration" in result.stdout
    assert "a (scripted) answers from its script" in result.stdout
    assert "b (responses) 127.0.0.1:9 does not answer" in result.stdout
    assert result.returncode == 1
    assert "a model is not usable" in result.stderr
