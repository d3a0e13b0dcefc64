from __future__ import annotations

from pathlib import Path

import pytest

from antwort.config import (
    ChatCompletionsModel,
    CompactionSettings,
    ConfigError,
    EmbeddedModel,
    ScriptedModel,
    compaction_keys_path,
    load,
    parse,
)

COMPLETE = """\
server: {host: 127.0.0.1, port: 8080}
models:
  default: gpt
  scripted: {kind: scripted, script: answers.yaml}
  gpt:
    kind: chat_completions
    base_url: http://127.0.0.1:8000/v1
    model: my-model
    api_key_env: ANTWORT_UPSTREAM_KEY
storage: {url: "sqlite:///.antwort/antwort.db", blobs: .antwort/blobs}
auth: {keys_file: keys.json}
engine: {max_turns: 32}
"""


def error_message(text: str, environment: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, environment or {}, name="antwort.yaml")
    return str(caught.value)


def test_an_empty_configuration_has_defaults():
    config = load(None, {})

    assert (config.server.host, config.server.port) == ("127.0.0.1", 8080)
    assert config.models.named == {}
    assert config.auth.keys_file is None


def test_embedded_model_settings_are_parsed_and_validated():
    text = "models: {discover: false, m: {kind: embedded, context: 4096, parallel: 1, threads: 3}}"
    models = parse(text, {"ANTWORT_MODEL_CACHE": "elsewhere"}).models

    assert models.named == {"m": EmbeddedModel(context=4096, parallel=1, threads=3)}
    assert not models.discover
    assert "`int` >= 512" in error_message("models: {m: {kind: embedded, context: 10}}")
    assert not parse("", {"ANTWORT_MODELS_DISCOVER": "false"}).models.discover


def test_a_complete_file_is_parsed():
    config = parse(COMPLETE, {"ANTWORT_UPSTREAM_KEY": "secret"})

    assert config.models.default == "gpt"
    assert isinstance(config.models.named["gpt"], ChatCompletionsModel)
    assert config.models.named["scripted"] == ScriptedModel(script="answers.yaml")


@pytest.mark.parametrize(
    "text, message",
    [
        ("server:\n  prot: 1", "antwort.yaml, line 2: server.prot: unknown key. Did you mean port?"),
        ("a: 1", "antwort.yaml, line 1: a: unknown key"),
        ("server:\n\n  port: many", "antwort.yaml, line 3: server.port: expected `int`, got `str`"),
        ("server:\n  port: 99999", "antwort.yaml, line 2: server.port: expected `int` <= 65535"),
        ("server: 3", "antwort.yaml, line 1: server: expected `object`, got `int`"),
        (
            "models:\n  m: {kind: magic}",
            "antwort.yaml, line 2: models.m.kind: invalid value 'magic'. Valid values: chat_completions, embedded",
        ),
        ("models:\n  m: {model: x}", "antwort.yaml, line 2: models.m.kind: missing. Valid values: chat_completions, "),
        ("models:\n  m: {kind: [1]}", "antwort.yaml, line 2: models.m.kind: invalid value [1]. Valid values: chat"),
        (
            "models:\n  m: {kind: scripted, scirpt: 1}",
            "antwort.yaml, line 2: models.m.scirpt: unknown key. Did you mean script?",
        ),
        ("models:\n  m: {kind: scripted, x: 1}", "antwort.yaml, line 2: models.m.x: unknown key"),
        ("models:\n  m: {kind: scripted}", "antwort.yaml, line 2: models.m: object missing required field `script`"),
        ("models:\n  m: 3", "antwort.yaml, line 2: models.m: must be a mapping with string keys"),
        ("models:\n  default: x", "antwort.yaml, line 2: models.default: no model 'x' under `models`"),
        (
            "models: {m: {kind: scripted, script: a}}\ncompaction:\n  model: x",
            "antwort.yaml, line 3: compaction.model: no model 'x' under `models`",
        ),
        ("compaction:\n  threshold: 0", "antwort.yaml, line 2: compaction.threshold: expected `int` >= 1"),
        (
            "compaction: {summary_token: 9}",
            "antwort.yaml, line 1: compaction.summary_token: unknown key. Did you mean s",
        ),
        ("models: [1]", "antwort.yaml, line 1: models: must be a mapping with string keys"),
        ("- 1", "antwort.yaml: top level: must be a mapping with string keys"),
        ("1: 2", "antwort.yaml: top level: must be a mapping with string keys"),
        ("a: [", "antwort.yaml, line 1: invalid YAML: expected the node content, but found '<stream end>'"),
        ("server: {port: 1}\nserver: {port: 2}", "antwort.yaml, line 2: duplicate key server"),
        ("models: {default_for_unknown: true}", "antwort.yaml, line 1: models.default_for_unknown: no model"),
        (
            "containers:\n  tiers: [8g]",
            "antwort.yaml, line 2: containers.tiers: invalid enum value '8g'. Valid values: 1g, 4g",
        ),
        ("containers:\n  tiers: []", "antwort.yaml, line 2: containers.tiers: expected `array` of length >= 1"),
        ("containers:\n  max_disk: 0", "antwort.yaml, line 2: containers.max_disk: expected `int` >= 1"),
        ("containers:\n  expires_after: 30", "antwort.yaml, line 2: containers.expires_after: must not exceed"),
        ("containers:\n  quota: 3", "antwort.yaml, line 2: containers.quota: unknown key"),
        *(
            (
                f"providers:\n  code_interpreter:\n    sandbox_url: {address}",
                "antwort.yaml, line 3: providers.code_interpreter.sandbox_url: must be a URL like",
            )
            for address in ("nowhere", "ftp://a", "http://", "http://user@host", "https://a/b/c")
        ),
        (
            "providers:\n  code_interpreter: {outputs: never}",
            "antwort.yaml, line 2: providers.code_interpreter.outputs: invalid enum value 'never'. Valid values: asked",
        ),
        (
            "providers:\n  code_interpreter: {execution_timeout: 0}",
            "antwort.yaml, line 2: providers.code_interpreter.execution_timeout: expected `float` > 0",
        ),
        (
            "providers:\n  code_interpreter: {execution_timeout: .inf}",
            "antwort.yaml, line 2: providers.code_interpreter.execution_timeout: expected `float` <= 31536000",
        ),
    ],
)
def test_an_error_names_file_line_key_and_reason(text, message):
    assert error_message(text).startswith(message)


def test_compaction_settings_are_parsed():
    model = "models: {m: {kind: scripted, script: a}}\n"
    given = parse(model + "compaction: {model: m, threshold: 8000}", {"ANTWORT_COMPACTION_SUMMARY_TOKENS": "500"})

    assert given.compaction == CompactionSettings(model="m", threshold=8000, summary_tokens=500)
    assert parse("", {}).compaction == CompactionSettings(
        keys_file=None,
        model=None,
        threshold=100_000,
        summary_tokens=2_000,
        user_message_tokens=20_000,
        tool_output_tokens=4_000,
    )


def test_the_sealing_keys_are_beside_the_blobs_by_default():
    assert compaction_keys_path(parse("", {})) == Path(".antwort/compaction-keys.json")
    assert compaction_keys_path(parse("storage: {blobs: /a/b}", {})) == Path("/a/compaction-keys.json")
    assert compaction_keys_path(parse("compaction: {keys_file: c.json}", {})) == Path("c.json")


def test_variables_take_precedence_over_the_file():
    environment = {
        "ANTWORT_SERVER_PORT": "9000",
        "ANTWORT_AUTH_KEYS_FILE": "other.json",
        "ANTWORT_PROVIDERS_CODE_INTERPRETER_SANDBOX_URL": "http://127.0.0.1:1",
        "ANTWORT_MODELS_DEFAULT_FOR_UNKNOWN": "true",
        "ANTWORT_CONTAINERS_EXPIRES_AFTER": "0.5",
        "ANTWORT_PROVIDERS_CODE_INTERPRETER_ENABLED": "true",
        "ANTWORT_UPSTREAM_KEY": "secret",
        "ANTWORT_CONFIG": "x",
        "HOME": "/",
    }
    config = parse(COMPLETE, environment)

    assert config.server.port == 9000
    assert config.auth.keys_file == "other.json"
    assert config.providers.code_interpreter.sandbox_url == "http://127.0.0.1:1"
    assert config.providers.code_interpreter.enabled is True
    assert config.models.default_for_unknown
    assert config.containers.expires_after == 0.5


def test_a_sandbox_token_variable_may_start_with_the_antwort_prefix():
    text = (
        "providers: {code_interpreter: {sandbox_url: 'http://127.0.0.1:1', sandbox_token_env: ANTWORT_SANDBOX_TOKEN}}"
    )

    assert parse(text, {"ANTWORT_SANDBOX_TOKEN": "secret"}).providers.code_interpreter.sandbox_token_env


def test_cors_is_off_by_default_and_lists_origins():
    assert parse("", {}).server.cors_origins == []
    origins = ["https://app.example", "http://localhost:3000", "http://[::1]:8080", "chrome-extension://abcdefgh"]
    assert parse(f"server: {{cors_origins: {origins}}}", {}).server.cors_origins == origins
    assert parse("", {"ANTWORT_SERVER_CORS_ORIGINS": ", ".join(origins)}).server.cors_origins == origins
    with_keys = parse("{server: {cors_origins: ['*']}, auth: {keys_file: keys.json}}", {})
    assert with_keys.server.cors_origins == ["*"]


@pytest.mark.parametrize(
    "origin",
    [
        "app.example",
        "https://app.example/",
        "https://App.example",
        "https://*.example",
        "null",
        "https://app.example:443",
    ],
)
def test_an_origin_that_browsers_do_not_send_is_an_error(origin):
    message = error_message(f"server: {{cors_origins: ['{origin}']}}")

    assert "line 1: server.cors_origins: " in message
    assert f"'{origin}' is not an origin" in message


def test_all_origins_without_keys_are_an_error():
    message = error_message("server: {cors_origins: ['https://app.example', '*']}")

    assert message.endswith("because it has no keys. List the origins, or set auth.keys_file")


def test_an_unknown_variable_is_an_error_with_a_suggestion():
    assert error_message("", {"ANTWORT_SERVR_PORT": "1"}).endswith("Did you mean ANTWORT_SERVER_PORT?")
    assert error_message("", {"ANTWORT_SERVER_PORT": "many"}).startswith("ANTWORT_SERVER_PORT: ")
    assert error_message("", {"ANTWORT_LOG_LEVEL": "loud"}).endswith("Valid values: debug, info, warning, error.")


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="Cannot read"):
        load(tmp_path / "none.yaml", {})
