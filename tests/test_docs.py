"""Runs the examples of README, docs and docstrings (sybil, doctest), and checks the links of the pages.

A Python block that cannot run in the tests is skipped in the page, with a reason:

    <!-- skip: next "needs an API key" -->
"""

from __future__ import annotations

import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from unittest import SkipTest

import pytest
from sybil import Sybil
from sybil.document import Document
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PAGES = [page for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))) if page.exists()]
MODULES = [path for path in sorted(SOURCE.rglob("*.py")) if ">>> " in path.read_text()]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_python_blocks_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    document = Sybil(parsers=[PythonCodeBlockParser(), SkipParser()]).parse(page)
    module = ModuleType("page")
    # The module is in sys.modules because serde resolves the annotations of its classes there.
    monkeypatch.setitem(sys.modules, module.__name__, module)
    document.namespace = vars(module)
    monkeypatch.chdir(tmp_path)  # examples may write files

    for example in document.examples():
        try:
            example.evaluate()
        except SkipTest as skipped:
            print(f"{relative(page)}:{example.line} skipped: {skipped}")  # noqa: T201 - shown by `pytest -rP`


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_skipped_block_has_a_reason(page):
    unexplained = [
        f"{relative(page)}:{line}" for line, reason in skips(Document.parse(str(page), SkipParser())) if not reason
    ]

    assert not unexplained, 'add a reason, as in <!-- skip: next "needs an API key" -->'


def skips(document: Document) -> list[tuple[int, str | None]]:
    """Line and reason of each `skip` directive but `end`."""
    found = [(example.line, *example.parsed) for example in document.examples()]
    return [(line, reason) for line, action, reason in found if action != "end"]


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_doctests_of_a_module_pass(path):
    name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")

    results = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)

    assert results.attempted
    assert not results.failed


def test_parity_table_is_that_of_the_tests():
    script = ROOT / "scripts" / "parity_table.py"
    table = subprocess.check_output([sys.executable, script], text=True)

    assert table.count("\n") > 10
    assert table in (ROOT / "docs" / "claude-agent-sdk.md").read_text(), f"run {script.name} --write"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=relative)
def test_relative_links_of_a_page_exist(page):
    prose = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", prose)
    broken = [target for target in targets if not (page.parent / target).exists()]

    assert broken == []
