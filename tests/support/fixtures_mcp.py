"""Fixtures for the hosted tool `mcp`: the real server with a scripted model, and MCP servers on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fake_mcp_servers import FakeMcpServer
from fixtures_server import Server, run_server


def call(function: str, /, **arguments: Any) -> dict[str, Any]:
    return {"call": {"name": function, "arguments": arguments}}


def _when(text: str, turn: int, *reply: dict[str, Any]) -> dict[str, Any]:
    return {"when": {"text": text, "turn": turn}, "reply": list(reply)}


CUSTOMER = "crm__customer"

SCRIPT: dict[str, Any] = {
    "fragment": 5,
    "answers": [
        _when("customer 7", 1, call(CUSTOMER, number=7)),
        _when("rename", 1, call("crm__rename", number=7, name="Ada King")),
        _when("two at once", 1, call("crm__wait"), call(CUSTOMER, number=8)),
        _when("three times", 1, call(CUSTOMER, number=7), call(CUSTOMER, number=8), call(CUSTOMER, number=9)),
        _when("broken", 1, {"call": {"name": CUSTOMER, "arguments": '{"number": '}}),
        _when("broken", 2, call(CUSTOMER, number=7)),
        _when("fail", 1, call("crm__fail", reason="no stock")),
        _when("both", 1, call(CUSTOMER, number=7), call("add", n=1)),
        _when("approve or add", 1, call("crm__rename", number=1, name="x"), call("add", n=1)),
        _when("program", 1, call("files__environment")),
        {"when": {"any": "was approved"}, "reply": [{"text": "Done: <<output>>"}]},
        {"when": {"any": "was denied"}, "reply": [{"text": "Not done: <<find /was denied.*/>>"}]},
        {"when": {"text": "again", "turn": 1}, "reply": [{"text": "As before: <<find /Ada \\w+/>>"}]},
        {"when": {"turn": 2}, "reply": [{"text": "I read: <<output>>"}]},
        {"when": {"turn": 3}, "reply": [{"text": "I read at last: <<output>>"}]},
        {"reply": [{"text": "No tool was used."}]},
    ],
}


class McpEnv:
    """A server, and the MCP server that its requests name."""

    def __init__(self, server: Server, crm: FakeMcpServer) -> None:
        self.server = server
        self.crm = crm

    def tool(self, **more: Any) -> dict[str, Any]:
        """A declaration whose tools need no approval."""
        url = {"server_url": self.crm.url}
        return {"type": "mcp", "server_label": "crm", **url, "require_approval": "never", **more}


@contextmanager
def mcp_server(directory: Path, mcp: dict[str, Any] | None = None, **config: Any) -> Iterator[McpEnv]:
    providers = {"code_interpreter": {"enabled": False}, "mcp": {"enabled": True, "timeout": 20, **(mcp or {})}}
    environment = config.pop("environment", {})
    with (
        FakeMcpServer().running() as crm,
        run_server(directory, {"providers": providers, **config}, environment=environment, script=SCRIPT) as server,
    ):
        yield McpEnv(server, crm)
