"""Example: code review of a folder that is mounted into the model's container, with a typed result.

Runs without an API key: it starts a local `antwort` with a scripted model, which runs real code on the real files. With
`OPENAI_MODEL` set (and `OPENAI_API_KEY`, or `OPENAI_BASE_URL`), the same program uses that model.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from support.progress import show_transfers
from support.server import ECHO_LAST_OUTPUT, code_reply, model_or_script

from weakincentives import MarkdownSection, Prompt, PromptTemplate, Session
from weakincentives.adapters.openai import OpenAIAdapter, OpenAIContainerWorkspaceSection, OpenAIHostedToolsConfig
from weakincentives.runtime import ToolInvoked
from weakincentives.tools import HostMount

PROJECT = {
    "src/shop/orders.py": (
        "import sqlite3\n\n\ndef find(db, name):\n"
        "    return db.execute(f\"SELECT * FROM orders WHERE name = '{name}'\")\n"
    ),
    "src/shop/prices.py": (
        "def total(expression):\n    return eval(expression)\n\n\n"
        "def unique(items):\n    seen = []\n    for item in items:\n        if item not in seen:\n"
        "            seen.append(item)\n    return seen\n"
    ),
    "src/shop/__init__.py": "",
    "README.md": "# Shop\n",
    ".git/config": "[core]\n",
}

FIND_ISSUES = """
import ast, json, pathlib
issues, files = [], sorted(pathlib.Path("/mnt/data/project/src").rglob("*.py"))
for file in files:
    for node in ast.walk(ast.parse(file.read_text())):
        where = f"{file.relative_to('/mnt/data/project')}:{getattr(node, 'lineno', 0)}"
        match node:
            case ast.Call(func=ast.Name(id="eval")):
                issues.append(f"{where}: eval() runs whatever it is given")
            case ast.Call(func=ast.Attribute(attr="execute"), args=[ast.JoinedStr(), *_]):
                issues.append(f"{where}: SQL is put together from text")
            case ast.Compare(ops=[ast.NotIn()], comparators=[ast.Name(id="seen")]):
                issues.append(f"{where}: looks through a list for every item")
print(json.dumps({
    "summary": f"{len(issues)} issues in {len(files)} files",
    "issues": sorted(issues),
    "suggestions": ["Use ast.literal_eval", "Use parameters in SQL", "Use a set for what was seen"],
}))
"""


@dataclass(frozen=True)
class ReviewResult:
    """The typed answer."""

    summary: str
    issues: list[str]
    suggestions: list[str]


def review(model: str, repositories: Path) -> ReviewResult:
    """Review the project `myproject`."""
    session = Session()
    show_transfers(session)
    workspace = OpenAIContainerWorkspaceSection(
        session=session,
        mounts=(
            HostMount(
                host_path=repositories / "myproject",
                mount_path="project",
                exclude_glob=(".git/*", "node_modules/*", "*.pyc"),
                max_bytes=20_000_000,
            ),
        ),
        allowed_host_roots=(repositories,),
    )
    try:
        adapter = OpenAIAdapter(model=model, hosted_tools=OpenAIHostedToolsConfig(code_interpreter=True))
        template = PromptTemplate[ReviewResult](
            ns="review",
            key="code",
            sections=[
                MarkdownSection(
                    title="Task",
                    key="task",
                    template=(
                        "Review the Python code in project/src/ for:\n"
                        "- Security vulnerabilities\n"
                        "- Performance issues\n"
                        "- Code style problems\n\n"
                        "Use Python to read and analyze files systematically."
                    ),
                ),
                workspace,
            ],
        )
        print(Prompt(template).render().section_text("workspace"), "\n")
        response = adapter.evaluate(Prompt(template), session=session)
        print(f"{len(session[ToolInvoked].all())} piece(s) of code ran in {workspace.container_id}.\n")
        return response.output
    finally:
        workspace.cleanup()


def make_project(repositories: Path) -> None:
    """Write a small project with three flaws."""
    for name, text in PROJECT.items():
        path = repositories / "myproject" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def main() -> None:
    """Create a project and review it."""
    with tempfile.TemporaryDirectory() as directory:
        repositories = Path(directory)
        make_project(repositories)
        with model_or_script(code_reply("Review the Python code", 1, FIND_ISSUES), ECHO_LAST_OUTPUT) as model:
            result = review(model, repositories)
    print(result.summary)
    for line in (*result.issues, *(f"Suggestion: {one}." for one in result.suggestions)):
        print(f"- {line}")


if __name__ == "__main__":
    main()
