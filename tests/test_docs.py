"""Every example in README, docs and docstrings runs, so that none of them lies.

A Python block that cannot run here is skipped in the page itself, with its reason:

    <!-- skip: next "needs an API key" -->
"""

from __future__ import annotations

import doctest
import importlib
import re
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
def test_the_blocks_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    document = Sybil(parsers=[PythonCodeBlockParser(), SkipParser()]).parse(page)
    module = ModuleType("page")
    # A module that can be found, because annotations of the classes in an example are looked up in it.
    monkeypatch.setitem(sys.modules, module.__name__, module)
    document.namespace = vars(module)
    monkeypatch.chdir(tmp_path)  # an example that writes a file does so in nobody's way

    for example in document.examples():
        try:
            example.evaluate()
        except SkipTest as skipped:
            print(f"{relative(page)}:{example.line} is skipped: {skipped}")  # noqa: T201 - shown by `pytest -rP`


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_a_skipped_block_says_why(page):
    silent = [
        f"{relative(page)}:{line}" for line, reason in skips(Document.parse(str(page), SkipParser())) if not reason
    ]

    assert not silent, 'write a reason, as in <!-- skip: next "needs an API key" -->'


def skips(document: Document) -> list[tuple[int, str | None]]:
    """Line and reason of each `skip` that starts something."""
    found = [(example.line, *example.parsed) for example in document.examples()]
    return [(line, reason) for line, action, reason in found if action != "end"]


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_the_examples_of_a_docstring_run(path):
    name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")

    results = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)

    assert results.attempted
    assert not results.failed


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=relative)
def test_the_links_of_a_page_lead_somewhere(page):
    prose = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", prose)
    broken = [target for target in targets if not (page.parent / target).exists()]

    assert broken == []
