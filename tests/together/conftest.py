"""One server per sandbox backend (local, sandbox_url), shared by the tests of the Containers API."""

from __future__ import annotations

import pytest
from fixtures_container_server import QUOTAS
from fixtures_server import create_key

TENANTS = {"ours": "a", "colleague": "a", "theirs": "b", "thrifty": "c"}


@pytest.fixture(scope="session", params=PLACES)
def stage(request, tmp_path_factory):
    """The shared server. No test stops it."""
    place = tmp_path_factory.mktemp(request.param)
    keys = {name: create_key(place, name, "--tenant", tenant) for name, tenant in TENANTS.items()}
    with staged(request.param, place, {"auth": {"keys_file": "keys.json"}, "containers": QUOTAS}) as running:
        running.server.keys = keys
        yield running


@pytest.fixture
def client(stage):
    """An SDK client of tenant `a`; its containers are deleted after the test."""
    with stage.server.client(stage.server.keys["ours"]) as sdk:
        yield sdk
        for container in sdk.containers.list(limit=100):
            sdk.containers.delete(container.id)


@pytest.fixture
def container(client):
    return client.containers.create(name="a test")
