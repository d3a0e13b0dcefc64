from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from antwort.cli import main
from antwort.config import CompactionSettings, parse
from antwort.http.cli import _apply_options


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("ANTWORT_")]:
        monkeypatch.delenv(name)
    return lambda *arguments: CliRunner().invoke(main, arguments)


def test_every_command_has_help(run):
    listing = run("--help").output

    for command in ("serve", "keys", "doctor", "model", "migrate", "export", "import"):
        assert command in listing
        assert run(command, "--help").exit_code == 0
    assert run("nothing").exit_code == 2


def test_keys_create_list_and_revoke(run):
    created = run("keys", "create", "me", "--tenant", "acme")
    key_id = created.stdout.split("-")[2]
    listed = run("keys", "list").output

    assert created.stdout.startswith("sk-antwort-")
    assert f"{key_id}  active " in listed
    assert "acme" in listed
    assert created.stdout.strip() not in listed
    assert run("keys", "revoke", key_id).exit_code == 0
    assert "revoked" in run("keys", "list").output
    assert run("keys", "revoke", "0000").exit_code == 1
    assert run("keys", "--file", "other.json", "list").exit_code == 1
    assert run("keys", "create", "me", "--tenant", "a b").exit_code == 1


def test_keys_create_says_whether_the_server_uses_its_file(run, tmp_path):
    Path("antwort.yaml").write_text("storage: {blobs: data/blobs}\nauth: {keys_file: state/keys.json}")
    default = run("keys", "create", "me")
    configured = run("keys", "--config", "antwort.yaml", "create", "me")
    same = run("keys", "--config", "antwort.yaml", "--file", "state/keys.json", "create", "me")
    other = run("keys", "--file", "other.json", "create", "me")

    used = "`antwort serve` with the same configuration uses it, a running server within seconds"
    assert "is in .antwort/keys.json" in default.stderr
    assert "is in state/keys.json" in configured.stderr
    assert [used in result.stderr for result in (default, configured, same, other)] == [True, True, True, False]
    setting = f"unless you write `auth: {{keys_file: {tmp_path}/other.json}}`"
    assert setting in other.stderr
    Path("antwort.yaml").write_text("auths: 1")
    broken = run("keys", "--config", "antwort.yaml", "--file", "other.json", "create", "me")
    assert (broken.exit_code, setting in broken.stderr) == (0, True)


@pytest.mark.parametrize(
    "content, mode, message",
    [
        ("", 0o600, "is not a key file"),
        ("{}", 0o600, "has no valid key. Create one with `antwort keys create`"),
        ('{"keys": []}', 0o600, "has no valid key"),
        ('{"keys": []}', 0o640, "chmod 600"),
        (None, 0o600, "The key file cannot be read"),
    ],
)
@pytest.mark.parametrize("command", ["serve", "doctor"])
def test_a_default_key_file_that_is_not_usable_is_an_error_at_start_and_never_no_authentication(
    run, command, content, mode, message
):
    path = Path(".antwort/keys.json")
    path.parent.mkdir()
    if content is None:
        path.symlink_to("nowhere")
    else:
        path.write_text(content)
        path.chmod(mode)
    Path("antwort.yaml").write_text("server: {port: 0}\nmodels: {discover: false}")
    result = run(command, "--config", "antwort.yaml")

    assert result.exit_code == 1
    assert message in result.output


def test_a_file_whose_keys_are_all_revoked_is_an_error_at_start(run):
    key_id = run("keys", "create", "me").stdout.split("-")[2]
    run("keys", "revoke", key_id)
    result = run("serve", "--port", "0")

    assert result.exit_code == 1
    assert ".antwort/keys.json has no valid key" in result.output


def key_ids(path=".antwort/compaction-keys.json"):
    return [key["id"] for key in json.loads(Path(path).read_text())["keys"]]


def test_keys_rotate_compaction_adds_a_key_and_says_what_is_readable(run):
    first = run("keys", "rotate-compaction")
    second = run("keys", "rotate-compaction")
    ids = key_ids()

    assert (first.exit_code, second.exit_code, len(ids)) == (0, 0, 2)
    assert f"Key {ids[0]} in .antwort/compaction-keys.json seals new items" in first.output
    assert first.output.endswith("1 key kept.\n")
    assert f"Key {ids[1]} in" in second.output
    assert "2 keys kept. Items sealed with an older key are readable until it is dropped." in second.output
    assert "no longer" not in second.output


def test_keys_rotate_compaction_drops_the_oldest_keys_with_keep(run):
    for _ in range(3):
        run("keys", "rotate-compaction")
    before = key_ids()
    two = run("keys", "rotate-compaction", "--keep", "2")
    one = run("keys", "rotate-compaction", "--keep", "1")

    assert f"Dropped: {before[0]}, {before[1]}. Items sealed with a dropped key can no longer be read." in two.output
    assert "1 key kept.\nDropped: " in one.output
    assert len(key_ids()) == 1
    assert not set(key_ids()) & set(before)
    assert run("keys", "rotate-compaction", "--keep", "0").exit_code == 2
    assert len(key_ids()) == 1


@pytest.mark.parametrize("place", ["group", "command", "variable"])
def test_keys_rotate_compaction_uses_the_configured_file(run, monkeypatch, place):
    # The variable is valid only with the configuration that names it, so no other configuration may be loaded.
    monkeypatch.setenv("ANTWORT_UPSTREAM", "secret")
    model = "{kind: responses, base_url: 'http://127.0.0.1:1', api_key_env: ANTWORT_UPSTREAM}"
    Path("antwort.yaml").write_text(f"models: {{m: {model}}}\ncompaction: {{keys_file: state/seal.json}}")
    if place == "variable":
        monkeypatch.setenv("ANTWORT_CONFIG", "antwort.yaml")
    option = ("--config", "antwort.yaml")
    before, after = (option if place == "group" else ()), (option if place == "command" else ())

    assert run("keys", *before, "rotate-compaction", *after).exit_code == 0
    assert len(key_ids("state/seal.json")) == 1


def test_keys_rotate_compaction_reports_errors(run):
    run("keys", "rotate-compaction")
    Path(".antwort/compaction-keys.json").chmod(0o644)
    exposed = run("keys", "rotate-compaction")
    Path("antwort.yaml").write_text("compaction: {keys_files: x}")
    misspelled = run("keys", "rotate-compaction", "--config", "antwort.yaml")
    wrong_file = run("keys", "--file", "x.json", "rotate-compaction")
    Path("antwort.yaml").write_text("compaction: {keys_file: antwort.yaml/keys.json}")
    no_directory = run("keys", "rotate-compaction", "--config", "antwort.yaml")

    assert (exposed.exit_code, misspelled.exit_code, wrong_file.exit_code, no_directory.exit_code) == (1, 1, 2, 1)
    assert "Not a directory" in no_directory.output
    assert "chmod 600" in exposed.output
    assert "compaction.keys_files: unknown key" in misspelled.output
    assert "compaction.keys_file" in wrong_file.output
    assert not Path("x.json").exists()


def test_doctor_checks_models_and_storage_without_creating_files(run):
    Path("script.yaml").write_text("answers: []")
    Path("antwort.yaml").write_text("models: {m: {kind: scripted, script: script.yaml}}")
    result = run("doctor", "--config", "antwort.yaml")

    assert result.exit_code == 0
    assert "m (scripted) answers from its script" in result.output
    assert "storage        will be created on the first start: sqlite:///.antwort/antwort.db" in result.output
    assert "keys           off: no API keys in .antwort/keys.json, so only loopback clients" in result.output
    assert "sealing keys   will be created on the first start: .antwort/compaction-keys.json" in result.output
    assert not Path(".antwort").exists()
    run("keys", "rotate-compaction")
    assert "sealing keys   1 key: .antwort/compaction-keys.json" in run("doctor", "--config", "antwort.yaml").output
    Path(".antwort/compaction-keys.json").chmod(0o644)
    assert "chmod 600" in run("doctor", "--config", "antwort.yaml").output
    Path(".antwort/compaction-keys.json").chmod(0o600)
    Path("script.yaml").write_text("answer: []")
    assert "models.m.script" in run("doctor", "--config", "antwort.yaml").output


@pytest.mark.skipif(sys.platform != "linux", reason="the jail needs Linux")
def test_doctor_checks_the_jails_of_mcp_servers(run):
    Path("script.yaml").write_text("answers: []")
    servers = """
      crm: {url: https://crm.example/mcp}
      notes: {command: [sh, -c, 'exit 3']}
      lost: {command: [no-such-program]}
      gone: {command: [sh], folders: [/no/such/folder]}
    """
    Path("antwort.yaml").write_text(
        f"models: {{m: {{kind: scripted, script: script.yaml}}}}\nproviders:\n  mcp:\n    servers:{servers}"
    )
    output = run("doctor", "--config", "antwort.yaml").output

    assert "mcp            servers by URL; configured: crm, gone (program in a jail)" in output
    assert "notes: its jail works" in output
    assert "lost: cannot be started: there is no program no-such-program in its jail" in output
    assert "gone: cannot be started: the folder /no/such/folder does not exist" in output


@pytest.mark.parametrize(
    "arguments, config, message",
    [
        (("--host", "0.0.0.0"), "", "there are no keys"),  # noqa: S104 - the test expects a rejection
        ((), "server: {prot: 1}", "line 1: server.prot: unknown key"),
        ((), "auth: {keys_file: none.json}", "antwort keys create"),
        ((), "storage: {url: 'mysql://x'}", "not supported"),
        ((), "models: {m: {kind: embedded, model: none.gguf}}", "models.m: The file none.gguf does not exist"),
        (("--model", "gpt-6"), "", "Unknown weights 'gpt-6'. Known: qwen"),
        (
            (),
            "models: {m: {kind: responses, base_url: 'http://127.0.0.1:1', api_key_env: NOT_SET}}",
            "NOT_SET is not set",
        ),
        ((), "providers: {code_interpreter: {sandbox_url: x}}", "must be a URL"),
        (
            (),
            "providers: {code_interpreter: {sandbox_url: 'http://127.0.0.1:1', sandbox_token_env: NOT_SET}}",
            "NOT_SET is not set",
        ),
        ((), "providers: {code_interpreter: {sandbox_token_env: NOT_SET}}", "no `sandbox_url`"),
    ],
)
def test_a_configuration_error_is_printed_and_exits_with_1(run, arguments, config, message):
    Path("antwort.yaml").write_text(config)
    result = run("serve", "--config", "antwort.yaml", "--port", "0", *arguments)

    assert result.exit_code == 1
    assert message in result.output


def test_an_embedded_model_of_the_command_line_replaces_the_model_that_writes_summaries():
    config = parse("models: {m: {kind: scripted, script: a}}\ncompaction: {model: m, threshold: 9}", {})

    assert _apply_options(config, None, None, None).compaction.model == "m"
    assert _apply_options(config, None, None, "qwen").compaction == CompactionSettings(threshold=9)


def test_an_embedded_model_of_the_command_line_gets_all_aliases():
    text = "models: {m: {kind: scripted, script: a}, default_for_unknown: false, aliases: {gpt-*: m, qwen: m}}"
    models = _apply_options(parse(text, {}), None, None, "qwen").models

    assert (list(models.named), models.default, models.aliases) == (["qwen"], "qwen", {"gpt-*": "qwen"})
    assert models.default_for_unknown is False


def test_a_locked_database_is_printed_without_a_traceback(run):
    Path("antwort.yaml").write_text("storage: {url: 'sqlite:///antwort.db', blobs: blobs}")
    with closing(sqlite3.connect("antwort.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        result = run("serve", "--config", "antwort.yaml", "--port", "0")

    assert result.exit_code == 1
    assert "locked by another process. Fix that" in result.output
    assert "Traceback" not in result.output


def test_the_cli_module_does_not_import_the_server():
    code = "import sys, antwort.cli; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()

    assert not {"cryptography", "uvicorn", "starlette", "httpx2", "rich"} & set(loaded)
