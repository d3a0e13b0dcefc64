"""One server for each place where code can run, shared by all tests that only use it."""

from __future__ import annotations

import pytest
from fixtures_code_interpreter import PLACES
from fixtures_container_server import QUOTAS, staged
from fixtures_server import create_key

TENANTS = {"ours": "a", "colleague": "a", "theirs": "b", "thrifty": "c"}


@pytest.fixture(scope="session", params=PLACES)
def stage(request, tmp_path_factory):
    """A server that the tests of containers share; none of them stops it."""
    place = tmp_path_factory.mktemp(request.param)
    keys = {name: create_key(place, name, "--tenant", tenant) for name, tenant in TENANTS.items()}
    with staged(request.param, place, {"auth": {"keys_file": "keys.json"}, "containers": QUOTAS}) as running:
        running.server.keys = keys
        yield running


@pytest.fixture
def client(stage):
    """Our client; what it has made is gone afterwards."""
    with stage.server.client(stage.server.keys["ours"]) as sdk:
        yield sdk
        for container in sdk.containers.list(limit=100):
            sdk.containers.delete(container.id)


@pytest.fixture
def container(client):
    return client.containers.create(name="a test")
