"""One server for each sandbox backend, shared by the tests that do not stop it."""

from __future__ import annotations

import pytest
from fixtures_code_interpreter import BACKENDS
from fixtures_container_replicas import replicated_container_server
from fixtures_container_server import QUOTAS, container_server
from fixtures_postgres import postgres_server
from fixtures_server import create_key

__all__ = ["postgres_server"]

TENANTS = {"owner": "a", "second_key": "a", "other_tenant": "b", "quota_tenant": "c"}


@pytest.fixture(scope="session", params=[*BACKENDS, pytest.param("replicas", marks=pytest.mark.long)])
def env(request, tmp_path_factory):
    """A server that the tests of containers share; or replicas, each of which gets every second request."""
    directory = tmp_path_factory.mktemp(request.param)
    keys = {name: create_key(directory, name, "--tenant", tenant) for name, tenant in TENANTS.items()}
    config = {"auth": {"keys_file": str(directory / "keys.json")}, "containers": QUOTAS}
    if request.param == "replicas":
        postgres = request.getfixturevalue("postgres_server")
        opened = replicated_container_server(postgres, directory, config)
    else:
        opened = container_server(request.param, directory, config)
    with opened as running:
        running.server.keys = keys
        yield running


@pytest.fixture
def client(env):
    """A client whose containers are deleted afterwards."""
    with env.server.client(env.server.keys["owner"]) as sdk:
        yield sdk
        for container in sdk.containers.list(limit=100):
            sdk.containers.delete(container.id)


@pytest.fixture
def container(client):
    return client.containers.create(name="a test")
