"""Model names through a server process and the SDK: aliases, globs, unknown names, `/v1/models`."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest
from agents import Agent, OpenAIProvider, RunConfig, Runner
from fixtures_server import run_server

ALIASES = {"*-mini": "small", "gpt-*": "org/big", "gpt-4o": "small", "vendor/latest": "org/big"}


def scripted(name):
    return {"kind": "scripted", "script": f"{name}.yaml"}


def write_scripts(directory):
    for name in ("small", "big"):
        script = {"answers": [{"reply": [{"text": f"{name} answers"}]}]}
        (directory / f"{name}.yaml").write_text(json.dumps(script))
    return directory


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    models = {"default": "small", "small": scripted("small"), "org/big": scripted("big"), "aliases": ALIASES}
    with run_server(
        write_scripts(tmp_path_factory.mktemp("server")), {"models": models, "compaction": {"model": "small"}}
    ) as running:
        yield running


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """A server with one model."""
    directory = write_scripts(tmp_path_factory.mktemp("single"))
    with run_server(directory, {"models": {"small": scripted("small")}}) as running:
        yield running


@pytest.fixture
def client(server):
    with server.client() as client:
        yield client


@pytest.mark.parametrize(
    "name, answer",
    [
        ("small", "small answers"),
        ("org/big", "big answers"),
        ("gpt-4o", "small answers"),  # the exact alias, not the glob
        ("gpt-5", "big answers"),
        ("gpt-5-mini", "small answers"),  # the first of two globs
        ("vendor/latest", "big answers"),
    ],
)
def test_aliases_and_globs_select_a_model_and_the_response_repeats_the_name(client, name, answer):
    created = client.responses.create(model=name, input="Hello")
    events = [*client.responses.create(model=name, input="Hello", stream=True)]

    assert (created.output_text, created.model) == (answer, name)
    assert client.responses.retrieve(created.id).model == name
    assert [event.response.model for event in (events[0], events[-1])] == [name, name]
    assert client.models.retrieve(name).id == name


def test_a_request_without_a_model_gets_the_default_and_the_response_names_it(client):
    created = client.responses.create(input="Hello")

    assert (created.output_text, created.model) == ("small answers", "small")


def test_a_background_response_and_a_token_count_take_an_alias(client):
    queued = client.responses.create(model="gpt-5", input="Hello", background=True, stream=True)

    assert [event.response.output_text for event in queued if event.type == "response.completed"] == ["big answers"]
    assert client.responses.input_tokens.count(model="gpt-5", input="Hello").input_tokens > 0


def test_the_model_list_has_the_models_and_the_exact_aliases_but_no_globs(client):
    assert sorted(model.id for model in client.models.list()) == ["gpt-4o", "org/big", "small", "vendor/latest"]


def test_several_models_refuse_an_unknown_name_and_list_the_models_and_the_settings(client):
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="claude", input="Hello")
    with pytest.raises(openai.NotFoundError) as missing:
        client.models.retrieve("claude")

    error = refused.value
    assert (error.code, error.param) == ("model_not_found", "model")
    assert "The requested model 'claude' does not exist. This server has: org/big, small, gpt-4o" in error.message
    assert "`models.aliases`" in error.message
    assert "`models.default_for_unknown: true`" in error.message
    assert (missing.value.code, missing.value.body) == ("model_not_found", error.body)


def test_the_start_screen_lists_the_aliases(server, single):
    assert "gpt-* = org/big, gpt-4o = small" in server.banner
    assert "unknown names get the default" not in server.banner
    assert "small (scripted, the default); unknown names get the default: from the configuration" in single.banner


def test_metrics_and_audit_log_name_the_configured_model(server, client):
    def count():
        with server.http() as http:
            lines = http.get("/metrics").text.splitlines()
        series = 'antwort_responses_total{model="org/big",status="completed"}'
        return sum(float(line.split()[-1]) for line in lines if line.startswith(series))

    before = count()
    created = client.responses.create(model="gpt-9", input="Hello")

    assert count() == before + 1
    [entry] = [line for line in server.read_log().splitlines() if created.id in line and "response.create" in line]
    assert json.loads(entry)["model"] == "org/big"


def test_an_alias_can_be_compacted(client):
    compacted = client.responses.compact(model="gpt-4o", input=[{"role": "user", "content": "Hello"}])

    assert compacted.output[-1].type == "compaction"


def test_with_one_model_every_name_gets_it(single):
    with single.client() as client:
        created = client.responses.create(model="gpt-5.9/newest", input="Hello")

        assert (created.output_text, created.model) == ("small answers", "gpt-5.9/newest")
        assert client.models.retrieve("gpt-5.9/newest").id == "gpt-5.9/newest"
        assert [model.id for model in client.models.list()] == ["small"]


def test_the_agents_sdk_runs_with_no_model_named(single):
    async def run():
        async with openai.AsyncOpenAI(base_url=f"{single.url}/v1", api_key="none", max_retries=0) as client:
            provider = OpenAIProvider(openai_client=client)
            config = RunConfig(model_provider=provider, tracing_disabled=True)
            return await Runner.run(Agent(name="Agent"), "Hello", run_config=config)

    assert asyncio.run(run()).final_output == "small answers"


def test_default_for_unknown_false_refuses_with_one_model_too(tmp_path):
    models = {"small": scripted("small"), "default_for_unknown": False}
    with run_server(write_scripts(tmp_path), {"models": models}) as server, server.client() as client:
        with pytest.raises(openai.BadRequestError, match="'gpt-5' does not exist"):
            client.responses.create(model="gpt-5", input="Hello")
        assert client.responses.create(input="Hello").model == "small"


def test_default_for_unknown_true_accepts_with_several_models_too(tmp_path):
    models = {"small": scripted("small"), "big": scripted("big"), "default": "big", "default_for_unknown": True}
    with run_server(write_scripts(tmp_path), {"models": models}) as server, server.client() as client:
        created = client.responses.create(model="gpt-5", input="Hello")

    assert (created.output_text, created.model) == ("big answers", "gpt-5")


def test_a_model_name_has_a_length_limit(single):
    with single.http() as http:
        answer = http.post("/v1/responses", json={"model": "m" * 513, "input": "Hello"})

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
