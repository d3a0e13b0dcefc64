"""Example: half a year of sales in CSV files, a typed report and a chart as result.

Mounts a folder of CSV files into a container; the model writes Python that runs there, and answers with a
`SalesReport`. `make demo` runs this program with a server and a model on this machine. It runs unchanged with OpenAI,
or any server with its API:

    OPENAI_API_KEY=… OPENAI_MODEL=gpt-5.1 python examples/sales_report.py
    OPENAI_BASE_URL=http://127.0.0.1:8080/v1 OPENAI_API_KEY=none OPENAI_MODEL=… python examples/sales_report.py
"""

from __future__ import annotations

import csv
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.table import Table
from rich.text import Text
from support.console import show_progress

from weakincentives import MarkdownSection, Prompt, PromptTemplate, Session
from weakincentives.adapters import PromptResponse
from weakincentives.adapters.openai import (
    OpenAIAdapter,
    OpenAIContainerWorkspaceSection,
    OpenAIHostedToolsConfig,
    OpenAIModelConfig,
)
from weakincentives.errors import WinkError
from weakincentives.tools import HostMount

DATA = Path(__file__).parent / "sales"
RESULTS = Path("sales_report")

TASK = (
    "The CSV files in `/mnt/data/sales` have the columns date, region, product, units and price. "
    "Read all of them into one pandas table, and add a column `revenue`: units times price. "
    "Print the total revenue, and the revenue of each region. "
    "Draw the revenue of each region with matplotlib as a bar chart with a title, and save it as `/mnt/data/chart.png`."
)


@dataclass(frozen=True)
class SalesReport:
    """What the sales files say."""

    total_revenue: Annotated[float, "The revenue of all rows together, with cents."]
    best_region: Annotated[str, "The region with the most revenue."]
    best_region_revenue: Annotated[float, "The revenue of that region, with cents."]


def create_report(model: str, session: Session) -> PromptResponse[SalesReport]:
    """Run the agent. New files of its container are copied to `RESULTS`."""
    adapter = OpenAIAdapter(
        model=model,
        model_config=OpenAIModelConfig(stream=True),
        hosted_tools=OpenAIHostedToolsConfig(code_interpreter=True),
    )
    workspace = OpenAIContainerWorkspaceSection(
        session=session,
        mounts=(HostMount(DATA, mount_path="sales"),),
        allowed_host_roots=(DATA.parent,),
        sync_on_cleanup=True,
        results_dir=RESULTS,
    )
    task = MarkdownSection(title="Task", key="task", template=TASK)
    with workspace:
        prompt = Prompt(PromptTemplate[SalesReport](ns="examples", key="sales-report", sections=[workspace, task]))
        return adapter.evaluate(prompt, session=session)


def expected_report() -> SalesReport:
    """The expected figures, calculated without a model."""
    revenue: Counter[str] = Counter()
    for path in sorted(DATA.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as lines:
            for row in csv.DictReader(lines):
                revenue[row["region"]] += round(100 * float(row["price"])) * int(row["units"])
    ((best, most),) = revenue.most_common(1)
    return SalesReport(revenue.total() / 100, best, most / 100)


def errors_in(report: SalesReport, chart: Path) -> list[str]:
    """Differences between a report and the expected one."""
    expected = expected_report()
    errors: list[str] = []
    for name in ("total_revenue", "best_region_revenue"):
        actual, wanted = getattr(report, name), getattr(expected, name)
        if abs(actual - wanted) > 0.01:  # noqa: PLR2004 - a cent
            errors.append(f"{name} is {wanted:,.2f}, not {actual:,.2f}")
    if report.best_region != expected.best_region:
        errors.append(f"best_region is {expected.best_region}, not {report.best_region}")
    if not (chart.is_file() and chart.read_bytes().startswith(b"\x89PNG")):
        errors.append(f"no chart at {chart}")
    return errors


def main() -> None:
    """Create the report, check it, and print the result."""
    console = Console()
    model = os.environ.get("OPENAI_MODEL")
    if not model:
        sys.exit("Set OPENAI_MODEL (and OPENAI_API_KEY, or OPENAI_BASE_URL), or run `make demo`, which has a model.")
    session, chart = Session(), RESULTS / "chart.png"
    chart.unlink(missing_ok=True)  # from an earlier run
    start = time.monotonic()
    try:
        with show_progress(session, console):
            response = create_report(model, session)
    except WinkError as error:
        sys.exit(f"\nNo report: {error}")
    seconds = time.monotonic() - start

    report, usage = response.output, response.usage
    table = Table("field", "value", title="The typed answer: SalesReport")
    for name, value in vars(report).items():
        table.add_row(name, Text(f"{value:,.2f}" if isinstance(value, float) else value))
    console.print(table)
    errors = errors_in(report, chart)
    console.print(f"chart    {chart.resolve()}", soft_wrap=True, markup=False)
    console.print(f"tokens   {usage.input_tokens:,} in ({usage.cached_tokens:,} cached), {usage.output_tokens:,} out")
    console.print(f"time     {seconds:.1f} s")
    if errors:
        sys.exit("checked  WRONG: " + "; ".join(errors))
    console.print("checked  the figures are right, by our own calculation from the same files")


if __name__ == "__main__":
    main()
