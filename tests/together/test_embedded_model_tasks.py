"""The examples and some evaluation tasks with the embedded model, through client, server and jail: `make test-model`.

The model is deterministic (temperature 0, fixed seed), so a wrong answer means that a prompt or the text of a tool
changed.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from antwort.models.embedded.prompt import FEW_SHOTS
from antwort.models.embedded.weights import CATALOGUE, DEFAULT_MODEL, WeightsCache

ROOT = Path(__file__).parents[2]
TASKS = ["squares", "weekday", "interest", "total", "best-city", "bars", "keep", "typed-best", "typed-number", "lines",
         "shell-replace", "mcp-customer"]  # fmt: skip

pytestmark = pytest.mark.model


@pytest.fixture(scope="module", autouse=True)
def import_paths():
    """Import paths of `bench` and `examples`, which are not installed."""
    paths = [str(ROOT / "bench"), str(ROOT / "examples")]
    sys.path[:0] = paths
    yield
    for path in paths:
        sys.path.remove(path)


@pytest.fixture(scope="module")
def evaluate(import_paths):
    return importlib.import_module("evaluate")


@pytest.fixture(scope="module")
def client_and_model(evaluate):
    """A client of a server with the default model, and the name of the model."""
    if not WeightsCache().has(CATALOGUE[DEFAULT_MODEL]):
        pytest.skip(f"the weights of {DEFAULT_MODEL} are not installed: `make model` downloads them")
    with evaluate.running_server(DEFAULT_MODEL) as (client, model):
        yield client, model


@pytest.fixture
def model(client_and_model, monkeypatch):
    """The name of the model; the environment variables point to its server, as the examples expect."""
    client, model = client_and_model
    monkeypatch.setenv("OPENAI_BASE_URL", str(client.base_url))
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("OPENAI_MODEL", model)
    return model


@pytest.mark.parametrize("name", TASKS)
def test_task(name, client_and_model, evaluate):
    (task,) = [task for task in evaluate.TASKS if task.name == name]
    outcome = evaluate.run_task(task, *client_and_model, seconds=600)

    assert outcome.errors == []
    assert sum(code != FEW_SHOTS.listing_code for code in outcome.code) >= len(task.questions), (
        "the model must run its own code for each question"
    )


def test_demo(tmp_path):
    environment = {**os.environ, "MODEL": DEFAULT_MODEL}
    command = [sys.executable, ROOT / "examples" / "demo.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "the figures are right, by our own calculation" in done.stdout
    assert (tmp_path / "sales_report" / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_code_review_example(model, tmp_path):
    example = importlib.import_module("code_review")
    example.make_project(tmp_path)
    result = example.review(model, tmp_path)

    text = " ".join([result.summary, *result.issues, *result.suggestions]).lower()
    assert result.issues
    assert re.search(r"\beval\b|injection|f-string", text), text


def test_analysis_example(model, tmp_path):
    example = importlib.import_module("analysis")
    data, results = tmp_path / "data", tmp_path / "results"
    data.mkdir()
    totals = example.make_sales(data)
    first, *_ = example.analyse(model, data, results)

    assert all(str(total) in first.replace(",", "") for total in totals.values())
    assert (results / "totals.png").read_bytes().startswith(b"\x89PNG")
    ranking = "".join(f"{city},{sold}\n" for city, sold in totals.most_common())
    assert (results / "ranking.csv").read_text(encoding="utf-8") == f"city,sold\n{ranking}"


def test_hybrid_example(model, capsys):
    result = importlib.import_module("hybrid").report(model)

    printed = capsys.readouterr().out
    assert "run_query (client)" in printed
    assert "code_interpreter (provider)" in printed
    assert (result.trend, result.per_month, result.months) == ("rising", pytest.approx(14), 12)
