"""Fixtures for workspaces: antwort with a model that runs scripted scenarios of code, and host files to mount.

A scenario is a list of turns: Python code, or the call of a function tool. After the last turn the model answers with
the output of that turn. The prompt selects a scenario by `scenario <name>`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fixtures_code_interpreter import code_server
from fixtures_server import Server

from weakincentives.adapters.openai import OpenAIAdapter, OpenAIClientConfig, OpenAIHostedToolsConfig
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Section

CODE = OpenAIHostedToolsConfig(code_interpreter=True)


def script(scenarios: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """The script of the model. A turn is code, or a reply in the form of the script."""
    answers = [
        {"when": {"text": f"scenario {name}.", "turn": turn}, "reply": [_reply(one)]}
        for name, turns in scenarios.items()
        for turn, one in enumerate(turns, start=1)
    ]
    return {"answers": [*answers, {"reply": [{"text": "<<output>>"}]}]}


def _reply(turn: Any) -> dict[str, Any]:
    return {"call": {"name": "code_interpreter", "arguments": {"code": turn}}} if isinstance(turn, str) else turn


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """A turn that calls a function tool."""
    return {"call": {"name": name, "arguments": arguments}}


@contextmanager
def scripted_server(directory: Path, scenarios: Mapping[str, Sequence[Any]], **config: Any) -> Iterator[Server]:
    """Run the server."""
    with code_server("local", directory, script=script(scenarios), **config) as server:
        yield server


def adapter_for(server: Server, **options: Any) -> OpenAIAdapter:
    config = OpenAIClientConfig(base_url=f"{server.url}/v1", api_key="none", timeout=60)
    return OpenAIAdapter(**{"model": "scripted", "client_config": config, "hosted_tools": CODE, **options})


def scenario_prompt(name: str, *sections: Section[Any], tools: Sequence[Any] = ()) -> Prompt[Any]:
    """A prompt that selects a scenario."""
    task = MarkdownSection(title="Task", key="task", template=f"Run scenario {name}.", tools=tools)
    return Prompt(PromptTemplate(ns="test", key="workspace", sections=[task, *sections]))


def write_files(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """Create host files to mount."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root
