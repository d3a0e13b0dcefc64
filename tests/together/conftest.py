"""One server for each sandbox backend, shared by the tests that do not stop it."""

from __future__ import annotations

import pytest
from fixtures_code_interpreter import BACKENDS
from fixtures_container_server import QUOTAS, container_server
from fixtures_server import create_key

TENANTS = {"owner": "a", "second_key": "a", "other_tenant": "b", "quota_tenant": "c"}


@pytest.fixture(scope="session", params=BACKENDS)
def env(request, tmp_path_factory):
    """A server that the tests of containers share."""
    directory = tmp_path_factory.mktemp(request.param)
    keys = {name: create_key(directory, name, "--tenant", tenant) for name, tenant in TENANTS.items()}
    with container_server(
        request.param, directory, {"auth": {"keys_file": "keys.json"}, "containers": QUOTAS}
    ) as running:
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
