"""A workspace on our server: host files in the model's container, what its code makes of them, and how it ends."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from workspace_stage import adapter_for, call, playing_scenes, scene, write_files

from weakincentives.adapters.openai import ContainerConfig, OpenAIContainerWorkspaceSection
from weakincentives.errors import WorkspaceError
from weakincentives.filesystem import Filesystem
from weakincentives.prompt import Tool, ToolContext, ToolResult
from weakincentives.runtime import ContainerRecreated, Session, ToolInvoked, TransferProgress, WorkspaceSynced
from weakincentives.tools import CodeInterpreterResult, HostMount, VfsToolsSection

SCENES = {
    "sum": ["print(sum(len(open(p).read()) for p in ('project/a.py', 'project/src/b.py')))"],
    "work": [
        "import os; os.makedirs('/mnt/data/out', exist_ok=True); open('/mnt/data/out/new.txt', 'w').write('made')",
        "open('/mnt/data/project/a.py', 'a').write('# seen'); os.remove('/mnt/data/project/src/b.py'); print('ok')",
    ],
    "remember": ["x = 41; print('noted')"],
    "recall": ["print(x + 1)"],
    "mixed": ["open('/mnt/data/made.txt', 'w').write('by code')", call("look", path="made.txt"), "print(open('/mnt/data/reply.txt').read())"],
    "vfs": [call("write_file", path="notes/a.txt", content="by the model"), "print(open('/mnt/data/notes/a.txt').read())"],
}
FILES = {"a.py": "print(1)\n", "src/b.py": "import a\n", ".git/config": "secret", "src/__pycache__/b.pyc": b"\0"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with playing_scenes(tmp_path_factory.mktemp("antwort"), SCENES) as running:
        yield running


@pytest.fixture(params=[True, False], ids=["archive", "plain"])
def config(request):
    return ContainerConfig(memory_limit="1g", archives=request.param)


@pytest.fixture
def project(tmp_path):
    return write_files(tmp_path / "host/project", FILES)


@pytest.fixture
def workspace(server, project, config):
    with OpenAIContainerWorkspaceSection(
        session=Session(),
        mounts=(HostMount(project, "project", exclude_glob=(".git/*", "__pycache__/")),),
        allowed_host_roots=(project.parent,),
        container_config=config,
    ) as section:
        yield section
    with server.client() as client:
        assert list(client.containers.list()) == []


def evaluate(server, workspace, name, **options) -> Any:
    return adapter_for(server).evaluate(scene(name, workspace), session=workspace.session, **options)


def test_code_finds_the_files_where_the_prompt_says(server, workspace):
    text = scene("sum", workspace).render().text
    assert "`/mnt/data/project`: 2 files, 18 bytes\n```\nsrc/\n  b.py\na.py\n```" in text

    assert evaluate(server, workspace, "sum").text == "18\n"
    (ran,) = workspace.session[ToolInvoked].all()
    assert isinstance(ran.result.value, CodeInterpreterResult)
    assert ran.result.value.container_id == workspace.container_id
