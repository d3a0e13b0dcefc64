"""Code blocks of the workspace specification, which is in `shared/specs` beside the repository.

The names that a block uses are imported before it, and its absolute paths are moved below a temporary directory.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SPECS = Path(__file__).parents[2].parent / "shared" / "specs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)

needs_the_specs = pytest.mark.skipif(not SPECS.is_dir(), reason="the specifications do not lie beside this clone")

NAMES = """
from dataclasses import dataclass
from typing import Any
from weakincentives.adapters.claude_agent_sdk import ClaudeAgentSDKAdapter, ClaudeAgentWorkspaceSection
from weakincentives.adapters.openai import (
    CompactionConfig, ContainerConfig, FileSearchConfig, OpenAIAdapter, OpenAIContainerWorkspaceSection,
    OpenAIHostedToolsConfig
)
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.prompt import Section as PromptSection
from weakincentives.runtime.events import InProcessDispatcher
from weakincentives.runtime.session import Session
from weakincentives.tools import HostMount, VfsToolsSection
"""


def blocks() -> list[str]:
    """The code blocks."""
    (path,) = SPECS.glob("001*")
    return BLOCK.findall(path.read_text(encoding="utf-8"))


def run_spec_block(
    line: str,
    *,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    replace: Mapping[str, str] | None = None,
    **given: Any,
) -> dict[str, Any]:
    """Run the block that contains a line, with unsupported parts replaced; return the names that it defines."""
    (source,) = (block for block in blocks() if line in block)
    for written, instead in (replace or {}).items():
        assert written in source
        source = source.replace(written, instead)
    source = re.sub(r'(?<=")/(?=repos|data)', f"{root}/", source)
    module = ModuleType("specification")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses resolve annotations there
    exec(compile(NAMES, "names", "exec"), vars(module))  # noqa: S102 - our own imports
    vars(module).update(given)
    exec(compile(source, "specification", "exec"), vars(module))  # noqa: S102 - our own specification
    return vars(module)


@dataclass(frozen=True)
class AnalysisResult:
    """The answer of the third story."""

    total: int


class DatabaseConnection:
    """The database that the third story assumes."""

    def __init__(self) -> None:
        self._database = sqlite3.connect(":memory:")
        self._database.row_factory = sqlite3.Row
        self._database.execute("CREATE TABLE sales (sold INTEGER)")
        self._database.executemany("INSERT INTO sales VALUES (?)", [(10,), (20,)])

    def execute(self, sql: str) -> list[dict[str, Any]]:
        return [dict(row) for row in self._database.execute(sql)]

    def close(self) -> None:
        self._database.close()
