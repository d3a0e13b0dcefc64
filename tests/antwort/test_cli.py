from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from antwort.cli import main


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("ANTWORT_")]:
        monkeypatch.delenv(name)
    return lambda *arguments: CliRunner().invoke(main, arguments)


def test_every_command_has_help(run):
    listing = run("--help").output

    for command in ("serve", "keys", "doctor", "model"):
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


def test_doctor_checks_models_and_storage_without_creating_files(run):
    Path("script.yaml").write_text("answers: []")
    Path("antwort.yaml").write_text("models: {m: {kind: scripted, script: script.yaml}}")
    result = run("doctor", "--config", "antwort.yaml")

    assert result.exit_code == 0
    assert "m (scripted) answers from its script" in result.output
    assert "storage        will be created on the first start: sqlite:///.antwort/antwort.db" in result.output
    assert not Path(".antwort").exists()
    Path("script.yaml").write_text("answer: []")
    assert "models.m.script" in run("doctor", "--config", "antwort.yaml").output


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

    assert not {"uvicorn", "starlette", "httpx2", "rich"} & set(loaded)
