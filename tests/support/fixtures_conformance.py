"""Server for the conformance suite: all its tools, two tenants, and a scripted model that does what the prompts say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fake_mcp_servers import FakeMcpServer
from fake_search_api import Found, fake_search_api
from fixtures_server import Server, create_key, run_server

from antwort.conformance.tools.cases import MCP_LABEL, NO_TOOL

PAGES = [
    Found("https://tea.example/oolong", "Oolong tea", "Oolong is a tea."),
    Found("https://tea.example/green", "Green tea", "Sencha is a green tea."),
]
MCP_FUNCTION = f"{MCP_LABEL}__customer"
READ_FILE = "import pathlib\nprint(*(path.read_text() for path in pathlib.Path('/mnt/data').iterdir()))"


def call(name: str, /, **arguments: Any) -> dict[str, Any]:
    return {"call": {"name": name, "arguments": arguments}}


def code(text: str) -> dict[str, Any]:
    return call("code_interpreter", code=text)


def search(query: str) -> dict[str, Any]:
    return call("web_search", queries=[query])


def when(text: str, *reply: dict[str, Any], turn: int = 1, **more: Any) -> dict[str, Any]:
    return {"when": {"text": text, "turn": turn}, "reply": list(reply), **more}


SCRIPT: dict[str, Any] = {
    "fragment": 6,
    "answers": [
        when("/^Summarize the conversation above/", {"text": "There are notes about boxes of tea."}),
        {"when": {"text": NO_TOOL, "choice": "auto"}, "reply": [{"text": "hello"}]},
        when("capital of France", {"text": '{"city": "Paris", "country": "France"}'}),
        when("prime numbers", {"reasoning": "I count them."}, {"text": "6"}),
        when("Call get_weather", call("get_weather", city="Berlin")),
        when("save_note", call("save_note", input="buy milk")),
        when("python tool to compute", code("print(12345 * 6789)")),
        when("ValueError('on purpose')", code("raise ValueError('on purpose')")),
        when("python tool twice", code("print(1)"), code("print(2)")),
        when("python tool to print the text", code(READ_FILE)),
        when("Search the web", search("oolong tea")),
        when("web search tool twice", search("oolong tea"), search("green tea")),
        when("conformance.invalid", call("open_page", url="https://conformance.invalid/")),
        when("shell tool to run: echo", call("shell", commands=["echo conformance"])),
        when("exit 3", call("shell", commands=["exit 3"])),
        when("shell tool twice", call("shell", commands=["echo 1"]), call("shell", commands=["echo 2"])),
        when("shell tool to list", call("shell", commands=["ls"])),
        when("local shell", call("local_shell", command=["ls"])),
        when("with apply_patch", call("apply_patch", type="create_file", path="notes.txt", diff="+buy milk")),
        when("file search twice", call("file_search", queries=["blue box"]), call("file_search", queries=["red box"])),
        when("password of the blue box", call("file_search", queries=["password of the blue box"])),
        when("MCP server twice", call(MCP_FUNCTION, number=7), call(MCP_FUNCTION, number=8)),
        when("tools of the MCP server", call(MCP_FUNCTION, number=7)),
        when("with commas", {"text": "1, 2, 3, "}, finish="length"),
        when("Count from 1 to 500", {"text": "1, "}, {"delay": 600}),
        when("Search the web", {"text": "Oolong is a tea [1]."}, turn=2),
        {"reply": [{"text": "hello"}]},
    ],
}


@contextmanager
def conforming_server(directory: Path) -> Iterator[tuple[Server, str]]:
    """The server process, with the keys `a` and `b` of two tenants; and the URL of an MCP server."""
    keys = {name: create_key(directory, name, "--tenant", name) for name in ("a", "b")}
    with fake_search_api(PAGES) as api, FakeMcpServer().running() as crm:
        config = {
            "auth": {"keys_file": "keys.json"},
            "models": {"default_for_unknown": False, "scripted": {"kind": "scripted", "script": "script.yaml"}},
            "providers": {
                "code_interpreter": {"enabled": True},
                "web_search": {"engine": "searxng", "url": api.url, "timeout": 3},
                "mcp": {"allow_networks": ["127.0.0.1/32"]},
            },
        }
        (directory / "scratch").mkdir(parents=True)
        environment = {"TMPDIR": str(directory / "scratch")}
        with run_server(directory, config, environment=environment, script=SCRIPT) as server:
            server.keys = keys
            yield server, crm.url
