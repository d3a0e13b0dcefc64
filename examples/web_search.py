"""Example: the hosted tool web_search, offline: the server searches a folder of saved pages, and the answer cites them.

Runs without an API key and without network: it starts a local `antwort` with the search engine `local` and a scripted
model, which searches, opens a page and answers. With `OPENAI_MODEL` set (and `OPENAI_API_KEY`, or `OPENAI_BASE_URL`),
the same program uses that model, and the search engine of its server.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from support.server import model_or_script, tool_reply

from weakincentives import MarkdownSection, Prompt, PromptTemplate, Session
from weakincentives.adapters.openai import (
    OpenAIAdapter,
    OpenAIWebSearchSection,
    UrlCitation,
    WebSearchConfig,
)
from weakincentives.adapters.openai.native_tools import WebSearchCall
from weakincentives.runtime import ToolInvoked

TASK = "How long does oolong steep, and how hot is the water? Search the web, and cite the page."
PAGE = "https://tea.example/oolong.md"
PAGES = {
    "tea.example/oolong.md": "# Oolong\n\nOolong is half oxidized. Use water of 90 °C, and let it steep for 3 minutes.",
    "tea.example/sencha.md": "# Sencha\n\nSencha is green. Use water of 70 °C, and let it steep for 90 seconds.",
    "coffee.example/filter.md": "# Filter coffee\n\nUse 60 g of coffee for a litre of water.",
}
"""As `wget --mirror` saves pages: the path of a file is its URL."""


def show(event: ToolInvoked) -> None:
    """Print what the provider has done."""
    call = event.params
    if isinstance(call, WebSearchCall):
        print(f"{call.action}: {', '.join(call.queries) or call.url}")


def ask(model: str) -> None:
    """Ask, and print the answer with its citations."""
    session = Session()
    session.dispatcher.subscribe(ToolInvoked, show)
    template = PromptTemplate[str](
        ns="examples",
        key="web-search",
        sections=[
            MarkdownSection(title="Task", key="task", template=TASK),
            OpenAIWebSearchSection(default_params=WebSearchConfig(search_context_size="low")),
        ],
    )
    response = OpenAIAdapter(model=model).evaluate(Prompt(template), session=session)
    text = response.text or ""
    print(f"\n{text}\n")
    for citation in response.citations:
        if isinstance(citation, UrlCitation):
            print(f"{text[citation.start_index : citation.end_index]} cites {citation.title}: {citation.url}")


def main() -> None:
    """Save the pages, and ask."""
    with tempfile.TemporaryDirectory() as directory:
        for name, text in PAGES.items():
            page = Path(directory, name)
            page.parent.mkdir(exist_ok=True)
            page.write_text(text, encoding="utf-8")
        answers = (
            tool_reply("oolong", 1, "web_search", queries=["oolong water temperature", "steep oolong"]),
            tool_reply("oolong", 2, "open_page", url=PAGE),
            {"reply": [{"text": f"Oolong steeps for 3 minutes in water of 90 °C [1], as [its page]({PAGE}) says."}]},
        )
        with model_or_script(*answers, providers={"web_search": {"engine": "local", "folder": directory}}) as model:
            ask(model)


if __name__ == "__main__":
    main()
