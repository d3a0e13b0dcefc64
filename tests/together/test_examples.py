"""The programs of examples/ run without errors, with a scripted model."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEED_A_MODEL = {
    "demo.py",
    "sales_report.py",
}  # the latter runs with a scripted model below, and both run in `make test-model`
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.name not in NEED_A_MODEL)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_every_example_runs(example: Path, tmp_path: Path):
    result = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    assert result.stdout
    assert list(tmp_path.iterdir()) == []  # no files are left in the working directory


DRAW = """
import glob, json, pandas as pd, matplotlib.pyplot as plt
rows = pd.concat(map(pd.read_csv, sorted(glob.glob("/mnt/data/sales/*.csv"))))
revenue = (rows.units * rows.price).groupby(rows.region).sum().round(2)
revenue.plot.bar(title="Revenue")
plt.savefig("/mnt/data/chart.png")
"""
PRINT_REPORT = """
best = revenue.idxmax()
report = {"total_revenue": float(revenue.sum().round(2)), "best_region": best}
print(json.dumps({**report, "best_region_revenue": float(revenue[best])WRONG}))
"""


@pytest.mark.parametrize("error, exit_code", [("", 0), (" + 1", 1)])
def test_the_sales_report_prints_and_checks_its_result(error, exit_code, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    played = importlib.import_module("played.server")
    user_text = "add a column `revenue`"
    steps = [played.run(user_text, 1, DRAW), played.run(user_text, 2, PRINT_REPORT.replace("WRONG", error))]
    monkeypatch.delenv("OPENAI_MODEL", raising=False)
    with played.model_at_hand(*steps, played.LAST_OUTPUT) as model:
        result = subprocess.run(
            [sys.executable, "-W", "error", ROOT / "examples" / "sales_report.py"],
            cwd=tmp_path,
            env={**os.environ, "OPENAI_MODEL": model},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    assert result.returncode == exit_code, result.stderr
    assert "── the model writes Python" in result.stdout
    assert (tmp_path / "sales_report" / "chart.png").is_file()
    assert ("the figures are right" in result.stdout) is (exit_code == 0)
    assert ("best_region_revenue is" in result.stderr) is (exit_code == 1)


def test_the_sales_report_without_a_model_names_the_variable(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "OPENAI_MODEL"}
    command = [sys.executable, ROOT / "examples" / "sales_report.py"]
    result = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert result.returncode == 1
    assert "OPENAI_MODEL" in result.stderr
