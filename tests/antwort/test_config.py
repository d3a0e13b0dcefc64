from __future__ import annotations

import json
from pathlib import Path

import pytest

from antwort.config import (
    ChatCompletionsModel,
    CompactionSettings,
    ConfigError,
    EmbeddedModel,
    ScriptedModel,
    api_keys_path,
    compaction_keys_path,
    load,
    parse,
    state_directory,
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
    assert (config.models.aliases, config.models.default_for_unknown) == ({}, None)
    assert config.auth.keys_file is None


def test_unavailable_tools_are_refused_unless_the_configuration_ignores_them():
    assert load(None, {}).tools.unavailable == "refuse"
    assert parse("tools: {unavailable: ignore}", {}).tools.unavailable == "ignore"
    assert parse("", {"ANTWORT_TOOLS_UNAVAILABLE": "ignore"}).tools.unavailable == "ignore"
    assert "tools.unavailable" in error_message("tools: {unavailable: drop}")


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
        (
            "models: {default_for_unknown: true, discover: false}",
            "antwort.yaml, line 1: models.default_for_unknown: no model",
        ),
        (
            "models:\n  m: {kind: scripted, script: a}\n  aliases:\n    gpt-4o: m\n    gpt-*: x",
            "antwort.yaml, line 5: models.aliases.gpt-*: no model 'x' under `models`. Configured models: m.",
        ),
        (
            "models:\n  aliases:\n    gpt-4o: m",
            "antwort.yaml, line 3: models.aliases.gpt-4o: no model 'm' under `models`. Configured models: none.",
        ),
        (
            "models:\n  m: {kind: scripted, script: a}\n  n: {kind: scripted, script: a}\n  aliases:\n    n: m",
            "antwort.yaml, line 5: models.aliases.n: is the name of a configured model. Rename one of them",
        ),
        (
            "models:\n  m: {kind: scripted, script: a}\n  aliases:\n    n: {kind: scripted}",
            "antwort.yaml, line 4: models.aliases.n: expected the name of a model, got {'kind': 'scripted'}",
        ),
        ("models:\n  aliases: [m]", "antwort.yaml, line 2: models.aliases: must be a mapping with string keys"),
        ("models:\n  aliases: {4: m}", "antwort.yaml, line 2: models.aliases: must be a mapping with string keys"),
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
            "providers:\n  code_interpreter:\n    sandbox_url: http://127.0.0.1:1\n    sandbox_template: python",
            "antwort.yaml, line 4: providers.code_interpreter.sandbox_template: `sandbox_template` and `sandbox_url`",
        ),
        *(
            (
                f"providers:\n  code_interpreter:\n    {name}: x",
                f"antwort.yaml, line 3: providers.code_interpreter.{name}: there is no `sandbox_template`",
            )
            for name in ("sandbox_warm_pool", "sandbox_namespace", "kubeconfig", "sandbox_router_token_env")
        ),
        (
            "providers:\n  code_interpreter:\n    sandbox_router: http://127.0.0.1:1",
            "antwort.yaml, line 3: providers.code_interpreter.sandbox_router: there is no `sandbox_template`",
        ),
        (
            "providers:\n  code_interpreter:\n    sandbox_router: nowhere",
            "antwort.yaml, line 3: providers.code_interpreter.sandbox_router: must be a URL like",
        ),
        (
            "providers:\n  code_interpreter:\n    sandbox_template: x\n    sandbox_router_token_env: X",
            "antwort.yaml, line 4: providers.code_interpreter.sandbox_router_token_env: there is no `sandbox_router`",
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
        *(
            (f"providers:\n  web_search:\n    {setting}", f"antwort.yaml, line 3: providers.web_search.{message}")
            for setting, message in (
                ("enabled: true", "enabled: needs an `engine`"),
                ("url: http://127.0.0.1", "url: there is no `engine` that it could be for"),
                ("folder: pages", "folder: there is no `engine` that it could be for"),
                ("engine: google", "engine: invalid enum value 'google'"),
                ("engine: searxng", "engine: the engine `searxng` needs `url`"),
                ("engine: brave", "engine: the engine `brave` needs `api_key_env`"),
                ("engine: local", "engine: the engine `local` needs `folder`"),
                ("{engine: searxng, url: ftp://x}", "url: must be a URL like"),
                ("{engine: searxng, url: 'http://u:p@x'}", "url: must be a URL like"),
                ("{engine: searxng, url: 'http://x', folder: y}", "folder: the engine `searxng` has none"),
                ("{engine: local, folder: y, api_key_env: K}", "api_key_env: the engine `local` has none"),
                ("timeout: 0", "timeout: expected `float` > 0"),
                ("cache: {max_age: 0}", "cache.max_age: expected `float` > 0"),
            )
        ),
        (
            "fetch:\n  allow_networks: [10.0.0.1/8]",
            "antwort.yaml, line 2: fetch.allow_networks: '10.0.0.1/8' is not a network",
        ),
        ("fetch:\n  ports: [0]", "antwort.yaml, line 2: fetch.ports: expected `int` >= 1"),
        *(
            (f"models:\n  m:\n    kind: embedded\n    {setting}", f"antwort.yaml, line 4: models.m.{message}")
            for setting, message in (
                ("attempts: 0", "attempts: expected `int` >= 1"),
                ("base_backoff: 9", "base_backoff: must not exceed `max_backoff`, which is 8"),
                ("max_retry_after: -1", "max_retry_after: expected `float` >= 0.0"),
                ("breaker_failures: -1", "breaker_failures: expected `int` >= 0"),
                ("breaker_pause: 0", "breaker_pause: expected `float` > 0.0"),
                ("breaker_wait: 0", "breaker_wait: expected `float` > 0.0"),
                ("breaker_pauses: 1", "breaker_pauses: unknown key. Did you mean breaker_pause?"),
            )
        ),
    ],
)
def test_an_error_names_file_line_key_and_reason(text, message):
    assert error_message(text).startswith(message)


def test_retries_and_circuit_breaker_of_a_model():
    defaults = {
        "timeout": 600,
        "attempts": 3,
        "base_backoff": 0.5,
        "max_backoff": 8,
        "max_retry_after": 20,
        "breaker_failures": 5,
        "breaker_pause": 10,
        "breaker_wait": 10,
    }
    changed = {name: value + 1 for name, value in defaults.items()}
    for kind in (
        {"kind": "embedded"},
        {"kind": "chat_completions", "base_url": "u"},
        {"kind": "responses", "base_url": "u"},
    ):
        for settings, expected in (
            ({}, defaults),
            (changed, changed),
            ({"breaker_failures": 0}, {"breaker_failures": 0}),
        ):
            model = parse(json.dumps({"models": {"m": {**kind, **settings}}}), {}).models.named["m"]
            assert {name: getattr(model, name) for name in expected} == expected
    assert "unknown key" in error_message("models: {m: {kind: scripted, script: a, attempts: 2}}")


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


def test_the_api_keys_are_beside_the_blobs_by_default():
    assert api_keys_path(parse("", {})) == Path(".antwort/keys.json")
    assert api_keys_path(parse("storage: {blobs: /a/b}", {})) == Path("/a/keys.json")
    assert api_keys_path(parse("auth: {keys_file: c.json}", {})) == Path("c.json")


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


def test_a_variable_holds_a_list_or_mapping_as_in_the_file():
    models = "models: {m: {kind: scripted, script: a}, aliases: {o3: m}}"
    environment = {"ANTWORT_MODELS_ALIASES": "{gpt-*: m, gpt-4o: m}", "ANTWORT_CONTAINERS_TIERS": "[4g, 1g]"}
    config = parse(models, environment)

    assert config.models.aliases == {"gpt-*": "m", "gpt-4o": "m"}
    assert list(config.models.aliases) == ["gpt-*", "gpt-4o"]
    assert config.containers.tiers == ["4g", "1g"]
    assert "models.aliases.a: no model 'x'" in error_message(models, {"ANTWORT_MODELS_ALIASES": "{a: x}"})
    for broken in ("gpt-4o", "{gpt", "", "{a: [m]}", "[m]"):
        assert error_message(models, {"ANTWORT_MODELS_ALIASES": broken}).startswith("ANTWORT_MODELS_ALIASES: ")


def test_a_sandbox_token_variable_may_start_with_the_antwort_prefix():
    text = (
        "providers: {code_interpreter: {sandbox_url: 'http://127.0.0.1:1', sandbox_token_env: ANTWORT_SANDBOX_TOKEN}}"
    )

    assert parse(text, {"ANTWORT_SANDBOX_TOKEN": "secret"}).providers.code_interpreter.sandbox_token_env


def test_cors_is_off_by_default_and_lists_origins():
    assert parse("", {}).server.cors_origins == []
    origins = ["https://app.example", "http://localhost:3000", "http://[::1]:8080", "chrome-extension://abcdefgh"]
    assert parse(f"server: {{cors_origins: {origins}}}", {}).server.cors_origins == origins
    assert parse("", {"ANTWORT_SERVER_CORS_ORIGINS": str(origins)}).server.cors_origins == origins
    assert parse("server: {cors_origins: ['*']}", {}).server.cors_origins == ["*"]


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


def test_an_unknown_variable_is_an_error_with_a_suggestion():
    assert error_message("", {"ANTWORT_SERVR_PORT": "1"}).endswith("Did you mean ANTWORT_SERVER_PORT?")
    assert error_message("", {"ANTWORT_SERVER_PORT": "many"}).startswith("ANTWORT_SERVER_PORT: ")
    assert error_message("", {"ANTWORT_LOG_LEVEL": "loud"}).endswith("Valid values: debug, info, warning, error.")


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="Cannot read"):
        load(tmp_path / "none.yaml", {})


# ── storage ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_local_files_are_beside_the_blob_directory_or_in_the_default_one():
    for text, directory in (
        ("", ".antwort"),
        ("storage: {blobs: data/blobs}", "data"),
        ("storage: {blobs: 's3://bucket/prefix'}", ".antwort"),
        ("storage: {blobs: 'az://container'}", ".antwort"),
    ):
        config = parse(text, {})
        assert str(api_keys_path(config)) == f"{directory}/keys.json"
        assert str(compaction_keys_path(config)) == f"{directory}/compaction-keys.json"
        assert str(state_directory(config)) == directory


@pytest.mark.parametrize(
    "blobs", ["ftp://bucket", "s3://", "s3:///prefix", "s3://key:hunter2@bucket", "s3://b?x=hunter2"]
)
def test_an_object_store_without_a_valid_url_is_an_error_that_does_not_quote_it(blobs):
    with pytest.raises(
        ConfigError, match=r"line 1: storage\.blobs: must be a directory, or `s3://bucket/prefix`"
    ) as error:
        parse(f"storage: {{blobs: '{blobs}'}}", {})
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    "storage, message",
    [
        ("{object_store: {endpoint: 'https://x'}}", r"endpoint: `storage\.blobs` is not an `s3://bucket/prefix`"),
        ("{blobs: 'gs://b', object_store: {region: r}}", r"region: `storage\.blobs` is not an `s3://bucket/prefix`"),
        ("{blobs: 's3://b', object_store: {endpoint: minio}}", "endpoint: must be a URL like"),
        ("{blobs: 's3://b', object_store: {endpoint: 'https://u:hunter2@x'}}", "endpoint: must be a URL like"),
    ],
)
def test_settings_of_the_object_store_are_checked(storage, message):
    with pytest.raises(ConfigError, match=message) as error:
        parse(f"storage: {storage}", {})
    assert "hunter2" not in str(error.value)


def test_settings_of_the_object_store_have_variables():
    variables = {"ANTWORT_STORAGE_BLOBS": "s3://b/p", "ANTWORT_STORAGE_OBJECT_STORE_ENDPOINT": "http://127.0.0.1:9"}
    assert parse("", variables).storage.object_store.endpoint == "http://127.0.0.1:9"
