"""The manifests on an API server: it stores the custom resources, and a server with the local overlay claims from them.

The API server has the definitions of agent-sandbox and no others, no nodes and no controllers: the fake controller
adopts the claims, with processes instead of pods.
"""

from __future__ import annotations

import asyncio
import copy
import json
from pathlib import Path

import pytest
import yaml
from fake_claim_controller import ClaimController
from fixtures_kubernetes import api_server, free_port, kubernetes_namespace
from fixtures_server import create_key, run_server
from manifests import Objects

from antwort.tools.builtins.codeinterpreter.kubernetes import KubernetesApi
from antwort.tools.builtins.codeinterpreter.kubernetes.api import ApiRefused
from antwort.tools.builtins.codeinterpreter.kubernetes.resources import GROUP

pytestmark = [pytest.mark.kubernetes, pytest.mark.anyio]


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory):
    with api_server(tmp_path_factory.mktemp("kubernetes")) as path:
        yield path


@pytest.fixture
async def api(kubeconfig):
    api = KubernetesApi.from_kubeconfig(kubeconfig)
    async with asyncio.timeout(30):
        while not await are_served(api):  # noqa: ASYNC110 - the definitions follow the group with a delay
            await asyncio.sleep(0.05)
    async with kubernetes_namespace(api, "antwort-sandboxes"):
        yield api
    await api.aclose()


async def are_served(api: KubernetesApi) -> bool:
    try:
        for plural in ("sandboxclaims", "sandboxtemplates", "sandboxwarmpools"):
            await api.request("GET", f"/apis/{GROUP}/v1beta1/namespaces/default/{plural}")
    except ApiRefused:
        return False
    return True


async def create(api: KubernetesApi, one: dict) -> dict:
    """Let the API server validate an object, without unknown fields, as if it was created."""
    group, plural = one["apiVersion"], f"{one['kind'].lower()}s"
    path = f"/apis/{group}/namespaces/{one['metadata']['namespace']}/{plural}"
    params = {"dryRun": "All", "fieldValidation": "Strict"}
    return json.loads(await api.request("POST", path, body=one, params=params))


async def test_the_api_server_accepts_the_custom_resources_without_changing_what_they_state(objects: Objects, api):
    for one in objects.of_kind("SandboxTemplate", "SandboxWarmPool"):
        stored = await create(api, one)
        assert stored["spec"] == one["spec"], "no field is dropped, and no default is left unsaid"


@pytest.mark.parametrize(
    "kind,change",
    [
        ("SandboxTemplate", {"runtimeClass": "gvisor"}),
        ("SandboxTemplate", {"networkPolicyManagement": "Sometimes"}),
        ("SandboxWarmPool", {"replicas": -1}),
        ("SandboxWarmPool", {"sandboxTemplateRef": {}}),
    ],
)
async def test_the_api_server_refuses_a_mistake(base: Objects, api, kind, change):
    one = copy.deepcopy(base.of_kind(kind)[0])
    one["spec"] |= change

    with pytest.raises(ApiRefused):
        await create(api, one)


async def test_the_first_call_of_the_page_runs_code_in_a_claimed_pod(render, kubeconfig, api, tmp_path):
    objects: Objects = render("local")
    (pool,) = objects.of_kind("SandboxWarmPool")
    port = free_port()
    controller = ClaimController(api, pool["metadata"]["namespace"], port, tmp_path)
    try:
        answer = await asyncio.to_thread(first_call, objects, tmp_path / "server", kubeconfig, port)
    finally:
        await controller.aclose()

    text = answer["output"][-1]["content"][0]["text"]
    assert [item["type"] for item in answer["output"]] == ["code_interpreter_call", "message"]
    assert text.startswith("The code printed: 42 ")
    assert await controller.claims() == [], "the end of the server deletes its claims"


def first_call(objects: Objects, directory: Path, kubeconfig: str, port: int) -> dict:
    """Serve the configuration of the overlay, with its paths in `directory`, and ask the question of the page."""
    mounted = {
        "/etc/antwort/config": str(directory),
        "/etc/antwort/secrets": str(directory),
        "/var/lib/antwort": str(directory),
    }
    key = create_key(directory, "me")
    files = objects.configuration()
    text = files["antwort.yaml"]
    for path, local in mounted.items():
        text = text.replace(path, local)
    config = yaml.safe_load(text)
    config["providers"]["code_interpreter"] |= {"sandbox_port": port, "kubeconfig": kubeconfig, "claim_timeout": 120}
    config["server"] |= {"host": "127.0.0.1", "shutdown_timeout": 5}
    config["storage"]["url"] = f"sqlite:///{directory}/antwort.db"
    question = {
        "model": "script",
        "input": "What is six times seven?",
        "tools": [{"type": "code_interpreter", "container": {"type": "auto"}}],
    }
    script = yaml.safe_load(files["script.yaml"])
    environment = {"SANDBOX_TOKEN": "secret"}
    with run_server(directory, config, script=script, environment=environment) as server, server.http() as client:
        headers = {"authorization": f"Bearer {key}"}
        answer = client.post("/v1/responses", json=question, headers=headers, timeout=180)
        assert answer.status_code == 200, answer.text
        return answer.json()
