from __future__ import annotations

import pytest

from antwort.config import ChatCompletionsModel, ConfigError, EmbeddedModel, ScriptedModel, load, parse

WHOLE = """\
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


def refusal(text: str, environment: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, environment or {}, name="antwort.yaml")
    return str(caught.value)


def test_nothing_at_all_is_a_configuration():
    config = load(None, {})

    assert (config.server.host, config.server.port) == ("127.0.0.1", 8080)
    assert config.models.named == {}
    assert config.auth.keys_file is None


def test_an_embedded_model_may_be_told_what_it_can_take():
    text = "models: {discover: false, m: {kind: embedded, context: 4096, parallel: 1, threads: 3}}"
    models = parse(text, {"ANTWORT_MODEL_CACHE": "elsewhere"}).models

    assert models.named == {"m": EmbeddedModel(context=4096, parallel=1, threads=3)}
    assert not models.discover
    assert "`int` >= 512" in refusal("models: {m: {kind: embedded, context: 10}}")
    assert not parse("", {"ANTWORT_MODELS_DISCOVER": "false"}).models.discover


def test_the_whole_of_it():
    config = parse(WHOLE, {"ANTWORT_UPSTREAM_KEY": "secret"})

    assert config.models.default == "gpt"
    assert isinstance(config.models.named["gpt"], ChatCompletionsModel)
    assert config.models.named["scripted"] == ScriptedModel(script="answers.yaml")


@pytest.mark.parametrize(
    "text, said",
    [
        ("server:\n  prot: 1", "antwort.yaml, line 2: server.prot: unknown key"),
        ("a: 1", "antwort.yaml, line 1: a: unknown key"),
        ("server:\n\n  port: many", "antwort.yaml, line 3: server.port: expected `int`, got `str`"),
        ("server:\n  port: 99999", "antwort.yaml, line 2: server.port: expected `int` <= 65535"),
        ("server: 3", "antwort.yaml, line 1: server: expected `object`, got `int`"),
        ("models:\n  m: {kind: magic}", "antwort.yaml, line 2: models.m.kind: invalid value 'magic'"),
        ("models:\n  m: {kind: scripted, x: 1}", "antwort.yaml, line 2: models.m.x: unknown key"),
        ("models:\n  m: {kind: scripted}", "antwort.yaml, line 2: models.m: object missing required field `script`"),
        ("models:\n  m: 3", "antwort.yaml, line 2: models.m: must be a mapping with names as keys"),
        ("models:\n  default: x", "antwort.yaml, line 2: models.default: there is no model 'x' under `models`"),
        ("models: [1]", "antwort.yaml, line 1: models: must be a mapping with names as keys"),
        ("- 1", "antwort.yaml: the file: must be a mapping with names as keys"),
        ("1: 2", "antwort.yaml: the file: must be a mapping with names as keys"),
        ("a: [", "antwort.yaml, line 1: not YAML: expected the node content, but found '<stream end>'"),
        ("server: {port: 1}\nserver: {port: 2}", "antwort.yaml, line 2: server is there twice"),
        ("models: {default_for_unknown: true}", "antwort.yaml, line 1: models.default_for_unknown: there is no model"),
        (
            "providers:\n  code_interpreter: {sandbox_url: a, sandbox_template: b}",
            "antwort.yaml, line 2: providers.code_interpreter.sandbox_template: give either",
        ),
        ("containers:\n  tiers: [8g]", "antwort.yaml, line 2: containers.tiers: invalid enum value '8g'"),
        ("containers:\n  tiers: []", "antwort.yaml, line 2: containers.tiers: expected `array` of length >= 1"),
        ("containers:\n  max_disk: 0", "antwort.yaml, line 2: containers.max_disk: expected `int` >= 1"),
        ("containers:\n  expires_after: 30", "antwort.yaml, line 2: containers.expires_after: must not be more than"),
        ("containers:\n  quota: 3", "antwort.yaml, line 2: containers.quota: unknown key"),
        *(
            (
                f"providers:\n  code_interpreter:\n    sandbox_url: {address}",
                "antwort.yaml, line 3: providers.code_interpreter.sandbox_url: must be an address like",
            )
            for address in ("nowhere", "ftp://a", "http://", "http://user@host", "https://a/b/c")
        ),
        (
            "providers:\n  code_interpreter: {sandbox_namespace: a}",
            "antwort.yaml, line 2: providers.code_interpreter.sandbox_namespace: there is no `sandbox_template`",
        ),
        (
            "providers:\n  code_interpreter: {outputs: never}",
            "antwort.yaml, line 2: providers.code_interpreter.outputs: invalid enum value 'never'",
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
def test_what_is_wrong_is_named_with_its_line(text, said):
    assert refusal(text).startswith(said)


def test_variables_go_before_the_file():
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
    config = parse(WHOLE, environment)

    assert config.server.port == 9000
    assert config.auth.keys_file == "other.json"
    assert config.providers.code_interpreter.sandbox_url == "http://127.0.0.1:1"
    assert config.providers.code_interpreter.enabled is True
    assert config.models.default_for_unknown
    assert config.containers.expires_after == 0.5


def test_the_token_of_a_sandbox_server_may_be_called_like_one_of_our_variables():
    text = (
        "providers: {code_interpreter: {sandbox_url: 'http://127.0.0.1:1', sandbox_token_env: ANTWORT_SANDBOX_TOKEN}}"
    )

    assert parse(text, {"ANTWORT_SANDBOX_TOKEN": "secret"}).providers.code_interpreter.sandbox_token_env


def test_a_variable_that_is_misspelled_is_an_error_with_a_hint():
    assert refusal("", {"ANTWORT_SERVR_PORT": "1"}).endswith("Did you mean ANTWORT_SERVER_PORT?")
    assert refusal("", {"ANTWORT_SERVER_PORT": "many"}).startswith("ANTWORT_SERVER_PORT: ")


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.yaml", {})
