"""The embedded model through the whole server: as a caller sees it, when it dies, and what a first start says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import openai
import pytest
from fixtures_server import ROOT, run_server
from local_weights import weights_here
from waiting import wait_until

CODE = {"type": "code_interpreter", "container": {"type": "auto"}}


def settings(weights: Path, **more) -> dict:
    model = {"kind": "embedded", "model": str(weights), "context": 4096, "parallel": 1}
    return {"models": {"small": model}, **more}


def children(pid: int) -> list[int]:
    """The model's processes of a server."""
    listed = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(line.split()[0]) for line in listed.stdout.splitlines() if "antwort.models.embedded.server" in line]


def client_of(server):
    return server.client().with_options(timeout=600)


def kill_in_the_middle(server, client, killed: dict[str, int]) -> None:
    """Kill the model once it has begun to speak; `killed` gets the response, and the process."""
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
    return weights_here()


@pytest.mark.model
def test_a_model_writes_python_and_the_jail_runs_it(tmp_path, weights):
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
def test_an_answer_is_streamed_as_it_is_written_and_counted(tmp_path, weights):
    with run_server(tmp_path, settings(weights)) as server:
        client = client_of(server)
        counted = client.responses.input_tokens.count(model="small", input="Count from one to five in words.")
        with client.responses.stream(model="small", input="Count from one to five in words.") as stream:
            deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
            whole = stream.get_final_response()

    assert len(deltas) > 3
    assert "".join(deltas) == whole.output_text
    assert whole.usage.input_tokens == counted.input_tokens


@pytest.mark.model
def test_a_model_that_is_killed_in_the_middle_fails_one_response_and_the_next_works(tmp_path, weights):
    with run_server(tmp_path, settings(weights)) as server:
        client = client_of(server)
        assert children(server.process.pid) == []  # nothing is started before it is needed
        killed: dict[str, int] = {}
        with pytest.raises(openai.APIError, match="ended before it was whole"):
            kill_in_the_middle(server, client, killed)
        ((response, failed),) = killed.items()
        wait_until(lambda: client.responses.retrieve(response).status == "failed")  # the error is told before the end

        again = client.responses.create(input="Say hello in one word.")
        (model,) = children(server.process.pid)
        assert again.status == "completed"
        assert model != failed
        server.kill()
    wait_until(lambda: not Path(f"/proc/{model}").exists())


@pytest.mark.model
def test_a_prompt_that_is_too_long_is_refused_by_name(tmp_path, weights):
    with run_server(tmp_path, settings(weights)) as server, pytest.raises(openai.BadRequestError) as caught:
        client_of(server).responses.create(input="word " * 6000)
    assert caught.value.code == "context_length_exceeded"


# ── without weights ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def bare(tmp_path):
    """The variables of a machine that has nothing: no key, no weights."""
    names = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    return {**kept, "PYTHONPATH": str(ROOT / "src"), "ANTWORT_MODEL_CACHE": str(tmp_path / "nothing")}


def test_a_server_with_a_configured_model_that_is_not_here_says_three_ways_to_go_on(tmp_path, bare):
    (tmp_path / "antwort.yaml").write_text("models: {small: {kind: embedded}}")
    command = [sys.executable, "-m", "antwort", "serve", "--config", "antwort.yaml", "--port", "0"]
    ended = subprocess.run(command, cwd=tmp_path, env=bare, capture_output=True, text=True, timeout=60, check=False)

    assert ended.returncode == 1
    assert (
        "models.small: The weights of qwen2.5-coder-1.5b are not on this machine. Three ways to go on" in ended.stderr
    )


def test_the_screen_says_which_model_and_why_and_the_hints_can_be_followed(tmp_path, bare):
    (tmp_path / "script.yaml").write_text("answers: [{reply: [{text: The Rhine.}]}]")
    (tmp_path / "antwort.yaml").write_text(
        "models: {m: {kind: scripted, script: script.yaml}}\nproviders: {code_interpreter: {enabled: false}}"
    )
    command = [sys.executable, "-m", "antwort", "serve", "--config", "antwort.yaml", "--port", "0", "--hints"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=bare, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        screen = ""
        while not screen.endswith("print(response.output_text)\n"):
            line = server.stdout.readline()
            assert line
            screen += line
        program = screen.partition("In Python:\n\n")[2]
        told = subprocess.check_output([sys.executable, "-c", program], env=bare, text=True)
        server.terminate()
        assert server.wait(30) == 0

    assert "models     m (scripted, the default): as the configuration says" in screen
    assert told == "The Rhine.\n"


def test_the_doctor_says_which_model_and_whether_it_answers(tmp_path, bare):
    (tmp_path / "script.yaml").write_text("answers: []")
    (tmp_path / "antwort.yaml").write_text(
        "models: {a: {kind: scripted, script: script.yaml}, b: {kind: responses, base_url: 'http://127.0.0.1:9/v1'}}"
    )
    command = [sys.executable, "-m", "antwort", "doctor", "--config", "antwort.yaml"]
    told = subprocess.run(command, cwd=tmp_path, env=bare, capture_output=True, text=True, timeout=120, check=False)

    assert "models         as the configuration says" in told.stdout
    assert "a (scripted) answers from its script" in told.stdout
    assert "b (responses) 127.0.0.1:9 does not answer" in told.stdout
    assert told.returncode == 1
    assert "a model cannot be used" in told.stderr
