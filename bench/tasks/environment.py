"""Where the questions of a task are asked: the declared tools, the sections of the prompt, and the files at the end."""

from __future__ import annotations

import io
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import shop_server
from openai import OpenAI
from processes import serving

from tasks.task import Kind, Task
from weakincentives import Session
from weakincentives.adapters.openai import (
    ExistingContainerRef,
    McpConfig,
    OpenAIContainerWorkspaceSection,
    OpenAIHostedToolsConfig,
    ShellConfig,
)
from weakincentives.tools import HostMount

_ROOT = "/mnt/data"


@dataclass(frozen=True)
class Environment:
    """What the prompts of a task have beside its questions, and access to the files of its container."""

    hosted_tools: OpenAIHostedToolsConfig
    sections: Sequence[OpenAIContainerWorkspaceSection] = ()
    read_files: Callable[[Sequence[str]], dict[str, bytes | None]] = field(default=dict.fromkeys)


def open_environment(task: Task, client: OpenAI, session: Session) -> AbstractContextManager[Environment]:
    """The environment of a task. Its container is deleted at the end."""
    return _ENVIRONMENTS.get(task.kind, _code_interpreter)(task, client, session)


@contextmanager
def _code_interpreter(task: Task, client: OpenAI, session: Session) -> Iterator[Environment]:
    """A workspace with code interpreter."""
    with tempfile.TemporaryDirectory(prefix="antwort-task-") as directory:
        for name, content in task.files.items():
            Path(directory, name).write_bytes(_bytes(content))
        mounts = (HostMount(directory, mount_path="."),) if task.files else ()
        workspace = OpenAIContainerWorkspaceSection(
            session=session, mounts=mounts, allowed_host_roots=(directory,), client=client
        )

        def read_files(paths: Sequence[str]) -> dict[str, bytes | None]:
            files = workspace.filesystem
            return {path: files.read_bytes(path) if files.exists(path) else None for path in paths}

        with workspace:
            yield Environment(OpenAIHostedToolsConfig(code_interpreter=True), (workspace,), read_files)


@contextmanager
def _shell(task: Task, client: OpenAI, session: Session) -> Iterator[Environment]:
    """The hosted shell in a container that has the files."""
    del session
    container = client.containers.create(name=task.name)
    archive = f"/containers/{container.id}/archive"
    try:
        client.put(
            archive, cast_to=object, content=_tar(task), options={"headers": {"content-type": "application/x-tar"}}
        )
        if task.setup:
            _set_up(client, container.id, task.setup)

        def read_files(paths: Sequence[str]) -> dict[str, bytes | None]:
            with tarfile.open(fileobj=io.BytesIO(client.get(archive, cast_to=bytes))) as files:
                members = {one.name.removeprefix("./"): files.extractfile(one) for one in files if one.isfile()}
                return {path: data.read() if (data := members.get(path)) else None for path in paths}

        tool = ShellConfig(container=ExistingContainerRef(container.id))
        yield Environment(OpenAIHostedToolsConfig(others=(tool,)), read_files=read_files)
    finally:
        client.containers.delete(container.id)


def _set_up(client: OpenAI, container_id: str, commands: str) -> None:
    """Run commands in the container, by an extension of the API that needs no model."""
    code = f"import subprocess\nsubprocess.run(['bash', '-ec', {commands!r}], cwd={_ROOT!r}, check=True)"
    done: Any = client.post(f"/containers/{container_id}/exec", cast_to=object, body={"code": code})
    if done["status"] != "ok":
        raise RuntimeError(f"the set-up commands have failed: {done}")


@contextmanager
def _mcp(task: Task, client: OpenAI, session: Session) -> Iterator[Environment]:
    """An MCP server on loopback, whose tools need no approval."""
    del task, client, session
    command = [sys.executable, shop_server.__file__, "{port}"]
    with (
        tempfile.TemporaryDirectory(prefix="antwort-task-") as directory,
        serving(command, ready=shop_server.READY, log=Path(directory, "log")) as server,
    ):
        url = f"http://127.0.0.1:{server.port}/mcp"
        tool = McpConfig(server_label=shop_server.LABEL, server_url=url, require_approval="never")
        yield Environment(OpenAIHostedToolsConfig(others=(tool,)))


_ENVIRONMENTS: dict[Kind, Callable[[Task, OpenAI, Session], AbstractContextManager[Environment]]] = {
    "shell": _shell,
    "mcp": _mcp,
}


def _tar(task: Task) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for path, content in task.files.items():
            member = tarfile.TarInfo(path)
            member.size = len(_bytes(content))
            archive.addfile(member, io.BytesIO(_bytes(content)))
    return data.getvalue()


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content
