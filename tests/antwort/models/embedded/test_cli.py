from __future__ import annotations

import io

import pytest
from click.testing import CliRunner
from fake_weights_hub import TINY
from rich.console import Console

from antwort.cli import main
from antwort.models.embedded.cli import Shown
from antwort.models.embedded.pull import pull
from antwort.models.embedded.weights import DEFAULT, PLACE, Cache, known


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv(PLACE, str(tmp_path / "models"))
    return lambda *arguments: CliRunner().invoke(main, ["model", *arguments])


def begin(tmp_path, size: int) -> None:
    cache = Cache(tmp_path / "models")
    cache.folder.mkdir()
    cache.beside(known(DEFAULT), "part").write_bytes(bytes(size))


def test_what_is_known_is_listed_with_what_is_here(run, tmp_path):
    assert f"{DEFAULT}     1.1 GB  Apache-2.0  -  (default)" in run("list").output
    begin(tmp_path, 2_000_000)

    assert f"{DEFAULT}     1.1 GB  Apache-2.0  2 MB of it  (default)" in run("list").output
    assert str(tmp_path / "models") in run("list").output


def test_weights_are_removed_with_what_a_broken_download_left(run, tmp_path):
    begin(tmp_path, 10)

    assert run("rm", DEFAULT).output == f"{DEFAULT} is removed.\n"
    again = run("rm", DEFAULT)
    assert again.exit_code == 1
    assert "There is nothing of" in again.output


def test_an_unknown_name_is_an_error_that_lists_the_known(run):
    for command in ("pull", "rm"):
        told = run(command, "gpt-6")
        assert told.exit_code == 1
        assert f"Known: {DEFAULT}" in told.output


def test_a_file_that_is_something_else_is_refused(run, tmp_path):
    (tmp_path / "mine.gguf").write_bytes(b"something else")
    told = run("pull", "--file", str(tmp_path / "mine.gguf"))

    assert told.exit_code == 1
    assert "1.1 GB, Apache-2.0, into" in told.output
    assert "is not qwen2.5-coder-1.5b-instruct-q4_k_m.gguf" in told.output
    assert (tmp_path / "mine.gguf").exists()


def test_offline_it_says_how_to_go_on(run, monkeypatch, unused_port):
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{unused_port}")
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_CONFIG_FILE", "/dev/null"), ("PIP_FIND_LINKS", "")):
        monkeypatch.setenv(name, value)
    told = run("pull")

    assert told.exit_code == 1
    assert "Three ways to go on" in told.output
    assert "Traceback" not in told.output


def test_progress_shows_how_much_and_how_fast(source, cache):
    screen = io.StringIO()
    with Shown(TINY, Console(file=screen, force_terminal=True, width=120)) as watcher:
        watcher.waiting()
        pull(TINY, cache, watcher, environment=source.environment)

    assert "waiting for it" in screen.getvalue()
    assert "from the model hub" in screen.getvalue()
    assert "3.0/3.0 MB" in screen.getvalue()
    assert "checking" in screen.getvalue()
    assert "/s" in screen.getvalue()
