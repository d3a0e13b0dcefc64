from __future__ import annotations

import pytest

from antwort.api.errors import ApiError
from antwort.config import ConfigError, parse
from antwort.models.registry import open_models
from antwort.telemetry import Metrics


def directory(tmp_path, more: str = ""):
    (tmp_path / "s.yaml").write_text("answers: []")
    script = tmp_path / "s.yaml"
    text = f"models: {{a: {{kind: scripted, script: {script}}}, b: {{kind: scripted, script: {script}}}{more}}}"
    return open_models(parse(text, {}).models, Metrics(), {"KEY": "secret"})


def test_the_first_is_the_default(tmp_path):
    models = directory(tmp_path)

    assert models.find(None).name == "a"
    assert models.find("b").name == "b"
    assert models.names() == ["a", "b"]


def test_an_unknown_name_is_refused(tmp_path):
    with pytest.raises(ApiError) as caught:
        directory(tmp_path).find("gpt-6")
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "model_not_found", "model")


def test_an_unknown_name_may_get_the_default(tmp_path):
    chosen = directory(tmp_path, ", default: b, default_for_unknown: true").find("gpt-6")

    assert (chosen.name, chosen.upstream_name) == ("gpt-6", "b")


def test_without_models_one_has_to_be_named():
    models = open_models(parse("", {}).models, Metrics(), {})
    with pytest.raises(ApiError) as caught:
        models.find(None)
    assert caught.value.code == "missing_required_parameter"


def test_upstreams_get_their_own_names_for_models(tmp_path):
    models = directory(
        tmp_path,
        ", c: {kind: chat_completions, base_url: 'http://127.0.0.1:1/v1', model: theirs, api_key_env: KEY}"
        ", d: {kind: responses, base_url: 'http://127.0.0.1:1/v1'}",
    )

    assert (models.find("c").upstream_name, models.find("d").upstream_name) == ("theirs", "d")


def test_a_chat_server_reads_files_only_where_that_is_said(tmp_path):
    chat = "{kind: chat_completions, base_url: 'http://127.0.0.1:1/v1'"
    models = directory(
        tmp_path,
        f", c: {chat}}}, d: {chat}, files: true}}, e: {{kind: responses, base_url: 'http://127.0.0.1:1/v1'}}",
    )

    assert [models.find(name).reads_files for name in "acde"] == [True, False, True, True]


def test_an_embedded_model_is_named_and_not_started(tmp_path):
    weights = tmp_path / "mine.gguf"
    weights.write_bytes(b"nobody reads them yet")
    chosen = directory(tmp_path, f", c: {{kind: embedded, model: {weights}, context: 512}}").find("c")

    assert (chosen.upstream_name, chosen.reads_files) == (str(weights), False)


def test_what_cannot_work_is_an_error_at_start(tmp_path):
    for more in (", c: {kind: embedded, model: nowhere.gguf}", ", c: {kind: scripted, script: nowhere.yaml}"):
        with pytest.raises(ConfigError, match=r"models\.c"):
            directory(tmp_path, more)
