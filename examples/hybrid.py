"""Example: client tools and hosted tools in one conversation: SQL in this process, Python in a container.

Runs without an API key: it starts a local `antwort` with a scripted model, which calls both tools. With `OPENAI_MODEL`
set (and `OPENAI_API_KEY`, or `OPENAI_BASE_URL`), the same program uses that model.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Any

from support.progress import show_transfers
from support.server import ECHO_LAST_OUTPUT, code_reply, model_or_script, tool_reply

from weakincentives import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    ResourceRegistry,
    Session,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.adapters.openai import OpenAIAdapter, OpenAIContainerWorkspaceSection, OpenAIHostedToolsConfig
from weakincentives.runtime import ToolInvoked

TASK = (
    "Analyze sales trends using SQL queries and Python. "
    "First use run_query with SELECT month, sum(sold) AS sold FROM sales GROUP BY month. "
    "Then write Python with the numbers that it returned in a list (there are no files), and print the length of the "
    "list and the slope, which is numpy.polyfit(range(len(numbers)), numbers, 1)[0]."
)
SQL = "SELECT month, sum(sold) AS sold FROM sales GROUP BY month ORDER BY month"
FIT_A_LINE = """
import json, numpy as np
output = '''<<output>>'''  # the result of the query
rows = json.loads(output[output.index("[") :])
slope, start = np.polyfit(range(len(rows)), [row["sold"] for row in rows], 1)
open("/mnt/data/trend.csv", "w").write("".join(f"{row['month']},{row['sold']}\\n" for row in rows))
"""
ANSWER = """
trend = "rising" if slope > 0 else "falling"
print(json.dumps({"trend": trend, "per_month": round(float(slope), 1), "months": len(rows)}))
"""


@dataclass(frozen=True)
class QueryParams:
    """Parameters of the query tool."""

    sql: Annotated[str, "One SELECT on the table sales(month, city, sold)."]


@dataclass(frozen=True)
class QueryResult:
    """Result of the query tool."""

    rows: list[dict[str, Any]]
    row_count: int

    def render(self) -> str:
        return json.dumps(self.rows)


@dataclass(frozen=True)
class AnalysisResult:
    """The typed answer."""

    trend: Annotated[str, "rising or falling"]
    per_month: Annotated[float, "The slope: how much more is sold each month."]
    months: Annotated[int, "How many months there are."]


def run_query(params: QueryParams, *, context: ToolContext) -> ToolResult[QueryResult]:
    """Execute SQL on the read-only database of the resources."""
    database = context.resources.get(sqlite3.Connection)
    rows = [dict(row) for row in database.execute(params.sql)]
    return ToolResult(f"Query returned {len(rows)} rows", QueryResult(rows=rows, row_count=len(rows)))


query_tool = Tool[QueryParams, QueryResult](
    name="run_query",
    description="Execute SQL query against the analytics database",
    handler=run_query,
)


def open_database() -> sqlite3.Connection:
    """A read-only in-memory database with a year of sales."""
    database = sqlite3.connect(":memory:")
    database.row_factory = sqlite3.Row
    database.execute("CREATE TABLE sales (month TEXT, city TEXT, sold INTEGER)")
    rows = [
        (f"2026-{month:02}", city, 90 + 7 * month + 11 * at) for month in range(1, 13) for at, city in enumerate("ab")
    ]
    database.executemany("INSERT INTO sales VALUES (?, ?, ?)", rows)
    database.execute("PRAGMA query_only = ON")
    return database


def report(model: str) -> AnalysisResult:
    """Run the analysis."""
    session = Session()
    show_transfers(session)
    session.dispatcher.subscribe(
        ToolInvoked, lambda event: print(f"{event.name} ({event.origin}): {event.rendered_output.split(chr(10))[0]}")
    )
    adapter = OpenAIAdapter(model=model, hosted_tools=OpenAIHostedToolsConfig(code_interpreter=True))
    with OpenAIContainerWorkspaceSection(session=session) as workspace, closing(open_database()) as database:
        template = PromptTemplate[AnalysisResult](
            ns="analytics",
            key="report",
            sections=[
                MarkdownSection(
                    title="Task",
                    key="task",
                    template=TASK,
                    tools=(query_tool,),  # in addition to the provider's tools
                ),
                workspace,
            ],
        )
        resources = ResourceRegistry.build({sqlite3.Connection: database})
        response = adapter.evaluate(Prompt(template), session=session, resources=resources)
        print(f"\nIn the container now: {workspace.filesystem.list_dir()}")
        return response.output


def main() -> None:
    """Run the example."""
    text = "Analyze sales trends"
    answers = (
        tool_reply(text, 1, "run_query", sql=SQL),
        code_reply(text, 2, FIT_A_LINE),
        code_reply(text, 3, ANSWER),
        ECHO_LAST_OUTPUT,
    )
    with model_or_script(*answers) as model:
        result = report(model)
    print(f"Sales are {result.trend} by {result.per_month} a month, over {result.months} months.")


if __name__ == "__main__":
    main()
