"""Example: an agent with a scripted model that fixes a bug: `python examples/bugfix.py`.

Only the model is scripted. The agent reads a small project, finds a bug, makes an edit that fails (and is rolled
back), fixes the bug, uses the provider's web search, and answers with a typed report.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from weakincentives import (
    Budget,
    Deadline,
    MarkdownSection,
    NativeTool,
    Prompt,
    PromptTemplate,
    Session,
    ToolResult,
)
from weakincentives.budget import TokenUsage
from weakincentives.filesystem import HostFilesystem
from weakincentives.runtime import InProcessDispatcher, ModelResponded, PromptRendered, ToolInvoked
from weakincentives.testing import ScriptedAdapter, call, calls, native, say
from weakincentives.tools import VfsToolsSection

PROJECT = {
    "shop/prices.py": "def total(prices):\n    return sum(prices[1:])\n",
    "shop/cart.py": "from shop.prices import total\n\nprint(total([10, 20, 30]))\n",
    "README.md": "# Shop\n\nThe cart should print 60.\n",
}


@dataclass(frozen=True)
class Goal:
    """Parameters of the prompt."""

    symptom: str


@dataclass(frozen=True)
class Report:
    """The typed answer."""

    cause: Annotated[str, "What was wrong, in one sentence."]
    fixed_files: Annotated[list[str], "Paths of the files that were changed."]
    confident: bool = True


@dataclass(frozen=True)
class SearchParams:
    """Parameters of the provider's web search."""

    query: str


@dataclass(frozen=True)
class SearchResult:
    """Result of the web search."""

    titles: list[str]

    def render(self) -> str:
        return "\n".join(self.titles)


def build_prompt(filesystem: HostFilesystem) -> PromptTemplate[Report]:
    """The prompt: task, tools and type of the answer."""
    web_search = NativeTool[SearchParams, SearchResult](name="web_search", description="Search the web.")
    return PromptTemplate[Report](
        ns="demo",
        key="bugfix",
        sections=[
            MarkdownSection[Goal](
                title="Task",
                key="task",
                template="Users say: ${symptom} Find the cause, repair it, and report.",
                tools=[web_search],
            ),
            VfsToolsSection(filesystem=filesystem),
        ],
    )


def scripted_adapter() -> ScriptedAdapter:
    """An adapter with the model's replies, turn by turn."""
    found = SearchResult(["Slicing sequences in Python: [1:] leaves out the first item"])
    return ScriptedAdapter(
        [
            calls(("ls", {}), ("grep", {"pattern": "total"}), usage=TokenUsage(412, 38)),
            call("read_file", path="shop/prices.py", usage=TokenUsage(530, 21)),
            call(
                "edit_file", path="shop/prices.py", old="sum(price[1:])", new="sum(prices)", usage=TokenUsage(611, 44)
            ),
            call("edit_file", path="shop/prices.py", old="prices[1:]", new="prices", usage=TokenUsage(702, 40)),
            native(
                "web_search",
                params=SearchParams("python slice leaves out first item"),
                result=ToolResult.ok(found),
                provider="scripted",
                text=say(Report("total() left out the first price.", ["shop/prices.py"])).text,
                usage=TokenUsage(780, 65),
            ),
        ]
    )


def print_events(bus: InProcessDispatcher) -> None:
    """Print events as they are dispatched."""

    def on_tool(event: ToolInvoked) -> None:
        mark = "ok  " if event.success else "FAIL"
        first_line = event.rendered_output.split("\n", 1)[0]
        print(f"  {mark} {event.name:<10} ({event.origin}) {event.params}\n       → {first_line}")

    bus.subscribe(
        PromptRendered, lambda event: print(f"Prompt '{event.prompt_name}', as the model reads it:\n\n{event.text}\n")
    )
    bus.subscribe(ModelResponded, lambda event: print(f"Turn {event.turn + 1}: {event.usage.total_tokens} tokens"))
    bus.subscribe(ToolInvoked, on_tool)


def main() -> None:
    """Run the agent on a fresh copy of the project."""
    with tempfile.TemporaryDirectory() as directory:
        filesystem = HostFilesystem(Path(directory))
        for path, text in PROJECT.items():
            filesystem.write_text(path, text)
        bus = InProcessDispatcher()
        print_events(bus)
        session = Session(dispatcher=bus)
        response = scripted_adapter().evaluate(
            Prompt(build_prompt(filesystem)),
            Goal("the cart prints 50 instead of 60."),
            session=session,
            budget=Budget(max_total_tokens=10_000, deadline=Deadline.after(60)),
        )
        repaired = filesystem.read_text("shop/prices.py")
    if "sum(prices)" not in repaired:
        raise SystemExit("the example failed: the bug is not fixed")
    print(f"\nThe typed answer:\n  {response.output}")
    print(f"\nshop/prices.py now:\n{repaired}")
    print(f"{response.turns} turns, {response.usage.total_tokens} tokens. The transcript, as JSONL, begins:")
    for line in session.transcript().to_jsonl().splitlines()[1:3]:
        print(f"  {line[:110]}…")


if __name__ == "__main__":
    main()
