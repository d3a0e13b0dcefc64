"""Example: several tasks on the same data in one container, which keeps variables and files; results are downloaded.

Runs without an API key: it starts a local `antwort` with a scripted model, which runs real code on the real files. With
`OPENAI_MODEL` set (and `OPENAI_API_KEY`, or `OPENAI_BASE_URL`), the same program uses that model.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from pathlib import Path

from support.progress import show_transfers
from support.server import ECHO_LAST_OUTPUT, code_reply, model_or_script

from weakincentives import MarkdownSection, Prompt, PromptTemplate, Session
from weakincentives.adapters.openai import OpenAIAdapter, OpenAIContainerWorkspaceSection, OpenAIHostedToolsConfig
from weakincentives.runtime import WorkspaceSynced
from weakincentives.tools import HostMount

TASKS = {
    "Add up what each city sold in data/sales.csv. Print it, and write it to totals.csv.": """
import pathlib, pandas as pd
sales = pd.read_csv("/mnt/data/data/sales.csv")
totals = sales.groupby("city", as_index=False)["sold"].sum().sort_values("sold", ascending=False)
totals.to_csv("/mnt/data/totals.csv", index=False)
print(totals.to_string(index=False))
""",
    "Read only totals.csv. Draw it as a bar chart, and save it as totals.png.": """
import matplotlib.pyplot as plt
totals.plot.bar(x="city", y="sold", legend=False)  # a variable of the previous task, in the same container
plt.tight_layout()
plt.savefig("/mnt/data/totals.png")
print("drawn")
""",
    "Sort totals.csv by sold, the most first, and save it as ranking.csv.": """
totals.to_csv("/mnt/data/ranking.csv", index=False)
print(pathlib.Path("/mnt/data/ranking.csv").read_text())
""",
}


def create_analysis_prompt(task: str, workspace: OpenAIContainerWorkspaceSection) -> Prompt[None]:
    """The prompt of one task. All tasks share the workspace."""
    section = MarkdownSection(title="Task", key="task", template=task.replace("$", "$$"))
    return Prompt(PromptTemplate(ns="analysis", key="task", sections=[workspace, section]))


def analyse(model: str, data: Path, results: Path) -> list[str]:
    """Run all tasks, and return the answers."""
    answers: list[str] = []
    session = Session()
    show_transfers(session)
    adapter = OpenAIAdapter(model=model, hosted_tools=OpenAIHostedToolsConfig(code_interpreter=True))
    workspace = OpenAIContainerWorkspaceSection(
        session=session,
        mounts=(HostMount(host_path=data, mount_path="data", max_bytes=50_000_000),),
        allowed_host_roots=(data,),
        sync_on_cleanup=True,  # download results …
        results_dir=results,  # … and copy them here, because the workspace deletes its copy
    )
    session.dispatcher.subscribe(WorkspaceSynced, lambda event: print(f"Synced: {event.render()}."))
    with workspace:
        for task in TASKS:
            response = adapter.evaluate(create_analysis_prompt(task, workspace), session=session)
            print(f"\n> {task}\n{response.text.strip()}\n")
            answers.append(response.text)
    return answers


def make_sales(data: Path) -> Counter[str]:
    """Write a year of random sales, and return the total of each city."""
    rng = random.Random(7)  # noqa: S311 - not for cryptography
    totals: Counter[str] = Counter()
    lines = ["month,city,sold"]
    for month in range(1, 13):
        sold = {city: rng.randint(50, 150) for city in ("Lima", "Oslo", "Pune")}
        lines += [f"2026-{month:02},{city},{count}" for city, count in sold.items()]
        totals.update(sold)
    (data / "sales.csv").write_text("\n".join([*lines, ""]), encoding="utf-8")
    return totals


def main() -> None:
    """Analyse random sales."""
    with tempfile.TemporaryDirectory() as directory:
        data, results = Path(directory, "data"), Path(directory, "results")
        data.mkdir()
        make_sales(data)
        answers = [code_reply(task[:40], 1, code) for task, code in TASKS.items()]
        with model_or_script(*answers, ECHO_LAST_OUTPUT) as model:
            analyse(model, data, results)
        print("Downloaded files:")
        for path in sorted(path for path in results.rglob("*") if path.is_file()):
            print(f"  {path.relative_to(results)} ({path.stat().st_size:,} bytes)")


if __name__ == "__main__":
    main()
