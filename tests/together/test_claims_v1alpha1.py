"""A cluster that serves only v1alpha1 of agent-sandbox."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime

import pytest
import yaml
from fixtures_kubernetes import START, skip_without_programs, started_api_server

from antwort.tools.builtins.codeinterpreter.kubernetes import Claims, KubernetesApi
from antwort.tools.builtins.codeinterpreter.kubernetes.claims import _Attempt

pytestmark = [pytest.mark.anyio, pytest.mark.kubernetes]


@pytest.fixture
def old_kubeconfig(tmp_path):
    """An API server whose CRDs have no other version."""
    skip_without_programs(START)
    (tmp_path / "kubernetes").mkdir()
    shutil.copytree(START.parent, tmp_path / "kubernetes", dirs_exist_ok=True)
    (tmp_path / "reference" / "crds").mkdir(parents=True)
    for path in (START.parents[1] / "reference" / "crds").glob("*.yaml"):
        crds = [crd for crd in yaml.safe_load_all(path.read_text(encoding="utf-8")) if crd]
        for crd in crds:
            crd["spec"]["versions"] = [one for one in crd["spec"]["versions"] if one["name"] == "v1alpha1"]
            for version in crd["spec"]["versions"]:
                version["storage"] = True
        (tmp_path / "reference" / "crds" / path.name).write_text(yaml.safe_dump_all(crds), encoding="utf-8")
    start = tmp_path / "kubernetes" / "start"
    script = start.read_text(encoding="utf-8").replace("v1beta1/namespaces", "v1alpha1/namespaces")
    start.write_text(script, encoding="utf-8")
    with started_api_server(tmp_path / "api", start) as path:
        yield path


async def test_claims_of_v1alpha1(old_kubeconfig):
    claims = Claims(
        KubernetesApi.from_kubeconfig(old_kubeconfig),
        namespace="default",
        template="template",
        warm_pool="pool",
        instance="one",
    )
    claim = await claims._create(_Attempt("old"), 30)
    path = "/apis/extensions.agents.x-k8s.io/v1alpha1/namespaces/default/sandboxclaims/old"
    ready = {"type": "Ready", "status": "True", "reason": "DependenciesReady", "message": ""}
    ready["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    body = {"status": {"conditions": [ready], "sandbox": {"name": "adopted", "podIPs": ["10.0.0.1"]}}}
    await claims._api.request("PATCH", f"{path}/status", body=body, content_type="application/merge-patch+json")

    found = await claims._wait_until_ready(claim, _Attempt("old", uid=claim.metadata.uid))
    assert (found.sandbox_name, await claims.address(found)) == ("adopted", "10.0.0.1")
    await claims.renew(found)
    renewed = await claims.reload(found)
    assert renewed.spec.lifecycle is not None
    assert renewed.spec.lifecycle.shutdown_time is not None
    assert renewed.spec.lifecycle.shutdown_time > datetime.now(UTC)
    assert await claims.sweep(["one"]) == 1
    assert await claims._get("old") is None
    await claims.aclose()
