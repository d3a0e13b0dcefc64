"""A stage for workspaces: the real server, with a model that plays scenes of code, and files to mount.

A scene is a list of turns, each some Python or what a function tool is called with; then the model says what the last
of them printed. It is request for by `scene <name>` in the prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fixtures_code_interpreter import coding
from fixtures_server import Server

from weakincentives.adapters.openai import OpenAIAdapter, OpenAIClientConfig, OpenAIHostedToolsConfig
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Section

CODE = OpenAIHostedToolsConfig(code_interpreter=True)


def script(scenes: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """What the model plays. A turn is code, or a whole reply in the script's own form."""
    answers = [
        {"when": {"text": f"scene {name}.", "turn": turn}, "reply": [_reply(one)]}
        for name, turns in scenes.items()
        for turn, one in enumerate(turns, start=1)
    ]
    return {"answers": [*answers, {"reply": [{"text": "<<output>>"}]}]}


def _reply(turn: Any) -> dict[str, Any]:
    return {"call": {"name": "code_interpreter", "arguments": {"code": turn}}} if isinstance(turn, str) else turn


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """A turn in which one of our tools is called."""
    return {"call": {"name": name, "arguments": arguments}}


@contextmanager
def playing_scenes(place: Path, scenes: Mapping[str, Sequence[Any]], **config: Any) -> Iterator[Server]:
    """The server, for a while."""
    with coding("local", place, script=script(scenes), **config) as server:
        yield server


def adapter_for(server: Server, **options: Any) -> OpenAIAdapter:
    config = OpenAIClientConfig(base_url=f"{server.url}/v1", api_key="none", timeout=60)
    return OpenAIAdapter(**{"model": "scripted", "client_config": config, "hosted_tools": CODE, **options})


def scene(name: str, *sections: Section[Any], tools: Sequence[Any] = ()) -> Prompt[Any]:
    """A prompt that asks for a scene."""
    task = MarkdownSection(title="Task", key="task", template=f"Play scene {name}.", tools=tools)
    return Prompt(PromptTemplate(ns="test", key="scene", sections=[task, *sections]))


def write_files(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """Files on this machine, to be mounted."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root
