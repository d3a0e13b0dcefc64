"""Prints the table of features that both client adapters have, made from the tests that prove them.

    python scripts/parity_table.py [--write]

A test proves a feature by its decorator `proves`. With `--write` the table is written into docs/claude-agent-sdk.md.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "claude-agent-sdk.md"
BEGIN, END = "<!-- parity table: make it with scripts/parity_table.py -->\n", "<!-- end of the parity table -->\n"
HEADER = ["feature", "`OpenAIAdapter`", "`ClaudeAgentSDKAdapter`", "test"]


def rows() -> Iterator[list[str]]:
    """The rows, in the order of the tests."""
    for path in sorted((ROOT / "tests" / "together").glob("test_claude_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                yield from (_row(proof, f"{path.name}: {node.name}") for proof in _proofs(node))


def _proofs(node: ast.FunctionDef) -> Iterator[ast.Call]:
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Name) and decorator.func.id == "proves":
            yield decorator


def _row(proof: ast.Call, test: str) -> list[str]:
    values = {keyword.arg: ast.literal_eval(keyword.value) for keyword in proof.keywords}
    return [ast.literal_eval(proof.args[0]), values["openai"], values["claude"], f"`{test}`"]


def table() -> str:
    """The table in Markdown."""
    lines = [HEADER, ["---"] * len(HEADER), *rows()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
        PAGE.write_text(before + BEGIN + "\n" + table() + "\n" + END + rest.split(END)[1], encoding="utf-8")
    else:
        print(table(), end="")
