"""`Filesystem` conformance suite of `ContainerFilesystem` with antwort, with and without archives."""

from __future__ import annotations

import pytest
from fixtures_code_interpreter import code_server

from weakincentives.adapters.openai import ContainerConfig, ContainerFilesystem
from weakincentives.testing.filesystem import FilesystemConformance


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with code_server("local", tmp_path_factory.mktemp("antwort")) as running:
        yield running


@pytest.mark.parametrize("archives", [True, False], ids=["archive", "plain"], indirect=True)
class TestContainerFilesystem(FilesystemConformance):
    @pytest.fixture(autouse=True)
    def archives(self, request, server):
        self._config = ContainerConfig(memory_limit="1g", archives=request.param)
        self._made: list[ContainerFilesystem] = []
        with server.client() as self._client:
            yield
            for files in self._made:
                files.cleanup()
            assert list(self._client.containers.list()) == []

    def make(self):
        files = ContainerFilesystem(client=self._client, container_config=self._config)
        self._made.append(files)
        return files
