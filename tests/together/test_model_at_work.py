"""The examples and some of the tasks with the embedded model, through everything: `make test-model`.

The model is deterministic (temperature 0, a fixed seed), so a wrong answer is a change of ours: in a
prompt, in the text of a tool, in what the model is shown.
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
TASKS = ["squares", "weekday", "interest", "total", "best-city", "bars", "keep", "typed-best", "typed-number", "lines"]

pytestmark = pytest.mark.model


@pytest.fixture(scope="module", autouse=True)
def bench():
    """What is not installed: `bench` and `examples`."""
    places = [str(ROOT / "bench"), str(ROOT / "examples")]
    sys.path[:0] = places
    yield
    for place in places:
        sys.path.remove(place)


@pytest.fixture(scope="module")
def evaluate(bench):
    return importlib.import_module("evaluate")


@pytest.fixture(scope="module")
def served(evaluate):
    """A server with the default model, and a client of it."""
    if not WeightsCache().has(CATALOGUE[DEFAULT_MODEL]):
        pytest.skip(f"the weights of {DEFAULT_MODEL} are not here: `make model` fetches them")
    with evaluate.antwort(DEFAULT_MODEL) as (client, model):
        yield client, model


@pytest.fixture
def model(served, monkeypatch):
    """The name of the model; the environment says where it is, as an example expects it."""
    client, model = served
    monkeypatch.setenv("OPENAI_BASE_URL", str(client.base_url))
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("OPENAI_MODEL", model)
    return model


@pytest.mark.parametrize("name", TASKS)
def test_a_task(name, served, evaluate):
    (task,) = [task for task in evaluate.TASKS if task.name == name]
    outcome = evaluate.attempt(task, *served, seconds=600)

    assert outcome.wrong == []
    assert sum(code != FEW_SHOTS.listing_code for code in outcome.code) >= len(task.asks), (
        "it has run code of its own each time"
    )


def test_the_demo(tmp_path):
    environment = {**os.environ, "MODEL": DEFAULT_MODEL}
    command = [sys.executable, ROOT / "examples" / "demo.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "the figures are right, by our own calculation" in done.stdout
    assert (tmp_path / "sales_report" / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_the_story_of_a_code_review(model, tmp_path):
    example = importlib.import_module("code_review")
    example.make_project(tmp_path)
    result = example.review(model, tmp_path)

    said = " ".join([result.summary, *result.issues, *result.suggestions]).lower()
    assert result.issues
    assert re.search(r"\beval\b|injection|f-string", said), said


def test_the_story_of_an_analysis(model, tmp_path):
    example = importlib.import_module("analysis")
    data, results = tmp_path / "data", tmp_path / "results"
    data.mkdir()
    totals = example.make_sales(data)
    first, *_ = example.analyse(model, data, results)

    assert all(str(total) in first.replace(",", "") for total in totals.values())
    assert (results / "totals.png").read_bytes().startswith(b"\x89PNG")
    ranking = "".join(f"{city},{sold}\n" for city, sold in totals.most_common())
    assert (results / "ranking.csv").read_text(encoding="utf-8") == f"city,sold\n{ranking}"


def test_the_story_of_sql_beside_python(model, capsys):
    result = importlib.import_module("hybrid").report(model)

    printed = capsys.readouterr().out
    assert "run_query (client)" in printed
    assert "code_interpreter (provider)" in printed
    assert (result.trend, result.per_month, result.months) == ("rising", pytest.approx(14), 12)
