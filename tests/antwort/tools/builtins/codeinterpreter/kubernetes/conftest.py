"""Fixtures of these tests: an API server, a namespace with a fake controller, and backends that claim from it."""

from __future__ import annotations

import secrets
from contextlib import aclosing

import pytest
from fake_claim_controller import POOL, ClaimController
from fixtures_kubernetes import api_server, free_port, kubernetes_namespace

from antwort.tools.builtins.codeinterpreter.kubernetes import Claims, KubernetesApi, KubernetesSandboxes, PodConnector


@pytest.fixture(scope="session")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory):
    with api_server(tmp_path_factory.mktemp("kubernetes")) as path:
        yield path


@pytest.fixture(scope="module")
def namespace():
    return f"test-{secrets.token_hex(4)}"


@pytest.fixture(scope="module")
def port():
    return free_port()


@pytest.fixture(scope="module")
async def controller(kubeconfig, namespace, port, tmp_path_factory):
    async with aclosing(KubernetesApi.from_kubeconfig(kubeconfig)) as api, kubernetes_namespace(api, namespace):
        controller = ClaimController(api, namespace, port, tmp_path_factory.mktemp("pods"))
        yield controller
        await controller.aclose()


@pytest.fixture(scope="module")
async def open_claims(kubeconfig, namespace):
    opened = []

    def open_claims(pool=POOL, *, instance="one", config=None, **settings):
        api = KubernetesApi.from_kubeconfig(str(config or kubeconfig))
        claims = Claims(api, namespace=namespace, template="template", warm_pool=pool, instance=instance, **settings)
        opened.append(claims)
        return claims

    yield open_claims
    for claims in opened:
        await claims.aclose()


@pytest.fixture(scope="module")
async def open_sandboxes(controller, open_claims, port):
    opened = []

    def open_sandboxes(*args, **settings):
        claims = open_claims(*args, **settings)
        sandboxes = KubernetesSandboxes(claims, PodConnector(claims, port=port, token=None))
        opened.append(sandboxes)
        return sandboxes

    yield open_sandboxes
    for sandboxes in opened:
        await sandboxes.aclose()
