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

    assert (chosen.name, chosen.upstream_name) == ("b", "b")


def test_an_alias_is_the_model_itself_so_that_models_can_be_compared_by_name(tmp_path):
    models = make_registry(tmp_path, ", aliases: {gpt-*: b}")

    assert models.find("gpt-6") is models.find("b")
    assert models.names() == ["a", "b"]


def test_without_models_the_parameter_is_required():
    models = open_models(parse("", {}).models, Metrics(), {})
    with pytest.raises(ApiError) as caught:
        models.find(None)
    assert caught.value.code == "missing_required_parameter"
    with pytest.raises(ApiError, match=r"'gpt-6' does not exist\. This server has no models\.") as caught:
        models.find("gpt-6")
    assert caught.value.code == "model_not_found"


def test_the_refusal_of_an_unknown_name_lists_a_bounded_number_of_models(tmp_path):
    aliases = ", ".join(f"alias{number}: b" for number in range(100))
    with pytest.raises(ApiError, match=r"This server has: a, b, alias0, .*, alias17 and 82 more\. In its"):
        make_registry(tmp_path, f", aliases: {{{aliases}}}").find("gpt-6")


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


def test_reads_images(tmp_path):
    chat = "{kind: chat_completions, base_url: 'http://127.0.0.1:1/v1'"
    models = make_registry(
        tmp_path,
        f", c: {chat}}}, d: {chat}, images: false}}, e: {{kind: responses, base_url: 'http://127.0.0.1:1/v1'}}",
    )

    assert [models.find(name).reads_images for name in "acde"] == [True, True, False, True]


def test_an_embedded_model_is_not_started_by_opening(tmp_path):
    weights = tmp_path / "mine.gguf"
    weights.write_bytes(b"not read yet")
    chosen = make_registry(tmp_path, f", c: {{kind: embedded, model: {weights}, context: 512}}").find("c")

    assert (chosen.upstream_name, chosen.reads_files, chosen.reads_images) == (str(weights), False, False)
    assert (chosen.context_window, chosen.encrypts_reasoning, chosen.compaction) == (512, False, None)


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


def test_which_models_encrypt_and_summarize_reasoning(tmp_path):
    sealing = tmp_path / "sealing.yaml"
    sealing.write_text("answers: [{reply: [{text: Hi}]}, {reply: [{sealed: gAAAA}, {text: Hi}]}]")
    upstream = "base_url: 'http://127.0.0.1:1/v1'"
    models = make_registry(
        tmp_path,
        f", c: {{kind: chat_completions, {upstream}}}, d: {{kind: responses, {upstream}}}"
        f", e: {{kind: scripted, script: {sealing}}}",
    )

    assert [models.find(name).encrypts_reasoning for name in "acde"] == [False, False, True, True]
    assert [models.find(name).summarizes_reasoning for name in "acde"] == [False, False, True, False]
    assert [models.find(name).context_window for name in "acde"] == [None] * 4


def test_only_an_upstream_responses_api_may_compact(tmp_path, upstream):
    responses = f"{{kind: responses, base_url: '{upstream.url}'"
    models = make_registry(
        tmp_path,
        f", chat: {{kind: chat_completions, base_url: '{upstream.url}'}}, auto: {responses}}}"
        f", upstream: {responses}, compaction: upstream}}, server: {responses}, compaction: server}}",
    )

    async def supported(name):
        compaction = models.find(name).compaction
        return None if compaction is None else await compaction.is_supported()

    async def ask():
        try:
            found = {name: await supported(name) for name in ("a", "chat", "server", "upstream")}
            assert not upstream.requests, "only `auto` asks the upstream"
            return {**found, "auto": await supported("auto")}
        finally:
            await models.aclose()

    assert asyncio.run(ask()) == {"a": None, "chat": None, "server": None, "upstream": True, "auto": False}
    assert [(request.path, request.body) for request in upstream.requests] == [("v1/responses/compact", {})]


def test_compactions_are_retried_as_configured(tmp_path, upstream):
    compacted = upstream.json({"output": [{"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA"}]})
    busy = upstream.json({}, 503)
    settings = f"{{kind: responses, base_url: '{upstream.url}', model: upstream-name, attempts: 2}}"

    models = make_registry(tmp_path, f", c: {settings}")
    compaction = models.find("c").compaction
    assert compaction is not None

    async def compact():
        try:
            compacted = await compaction.compact(make_request())
            with pytest.raises(ModelFault):
                await compaction.compact(make_request())
        finally:
            await models.aclose()
        return compacted

    upstream.set_replies(busy, compacted, busy, busy, compacted, path="v1/responses/compact")
    assert asyncio.run(compact()).output[0]["id"] == "cmp_1"
    assert [request.body["model"] for request in upstream.requests] == ["upstream-name"] * 4


def test_an_unknown_compaction_setting_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="compaction"):
        make_registry(tmp_path, ", c: {kind: responses, base_url: 'http://127.0.0.1:1/v1', compaction: never}")
