from __future__ import annotations

import asyncio

import pytest

from antwort.api.errors import ApiError
from antwort.config import ConfigError, parse
from antwort.engine.ports import ModelFault
from antwort.models.registry import open_models
from antwort.telemetry import Metrics
from antwort.testing.model import collect, fold, make_request


def make_registry(tmp_path, more: str = ""):
    (tmp_path / "s.yaml").write_text("answers: []")
    script = tmp_path / "s.yaml"
    text = f"models: {{a: {{kind: scripted, script: {script}}}, b: {{kind: scripted, script: {script}}}{more}}}"
    return open_models(parse(text, {}).models, Metrics(), {"KEY": "secret"})


def test_the_first_model_is_the_default(tmp_path):
    models = make_registry(tmp_path)

    assert models.find(None).name == "a"
    assert models.find("b").name == "b"
    assert models.names() == ["a", "b"]


def test_an_unknown_name_is_a_400(tmp_path):
    with pytest.raises(ApiError) as caught:
        make_registry(tmp_path).find("gpt-6")
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "model_not_found", "model")


def test_default_for_unknown(tmp_path):
    chosen = make_registry(tmp_path, ", default: b, default_for_unknown: true").find("gpt-6")

    assert (chosen.name, chosen.upstream_name) == ("gpt-6", "b")


def test_without_models_the_parameter_is_required():
    models = open_models(parse("", {}).models, Metrics(), {})
    with pytest.raises(ApiError) as caught:
        models.find(None)
    assert caught.value.code == "missing_required_parameter"


def test_the_upstream_name_of_a_model(tmp_path):
    models = make_registry(
        tmp_path,
        ", c: {kind: chat_completions, base_url: 'http://127.0.0.1:1/v1', model: upstream-name, api_key_env: KEY}"
        ", d: {kind: responses, base_url: 'http://127.0.0.1:1/v1'}",
    )

    assert (models.find("c").upstream_name, models.find("d").upstream_name) == ("upstream-name", "d")


def test_reads_files(tmp_path):
    chat = "{kind: chat_completions, base_url: 'http://127.0.0.1:1/v1'"
    models = make_registry(
        tmp_path,
        f", c: {chat}}}, d: {chat}, files: true}}, e: {{kind: responses, base_url: 'http://127.0.0.1:1/v1'}}",
    )

    assert [models.find(name).reads_files for name in "acde"] == [True, False, True, True]


def test_an_embedded_model_is_not_started_by_opening(tmp_path):
    weights = tmp_path / "mine.gguf"
    weights.write_bytes(b"not read yet")
    chosen = make_registry(tmp_path, f", c: {{kind: embedded, model: {weights}, context: 512}}").find("c")

    assert (chosen.upstream_name, chosen.reads_files) == (str(weights), False)


def test_missing_files_are_errors_at_start(tmp_path):
    for more in (", c: {kind: embedded, model: missing.gguf}", ", c: {kind: scripted, script: missing.yaml}"):
        with pytest.raises(ConfigError, match=r"models\.c"):
            make_registry(tmp_path, more)


def test_faults_of_a_scripted_model_are_neither_retried_nor_open_the_circuit_breaker(tmp_path):
    (tmp_path / "faults.yaml").write_text(
        "answers: [{times: 10, reply: [{fault: {retryable: true}}]}, {reply: [{text: Done.}]}]"
    )
    model = make_registry(tmp_path, f", c: {{kind: scripted, script: {tmp_path / 'faults.yaml'}}}").find("c").model
    for _ in range(10):
        with pytest.raises(ModelFault, match="The script contains a fault"):
            asyncio.run(collect(model, make_request()))

    assert fold(asyncio.run(collect(model, make_request()))).text == "Done."
