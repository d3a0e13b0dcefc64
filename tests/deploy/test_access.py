"""The roles of the manifests have exactly the verbs that the claims of the server use."""

from __future__ import annotations

import ast
import json
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import pytest
from lightkube.config.kubeconfig import SingleConfig
from lightkube.config.models import Cluster, Context
from manifests import Objects

from antwort.tools.builtins.codeinterpreter import kubernetes
from antwort.tools.builtins.codeinterpreter.kubernetes import Claims, KubernetesApi
from antwort.tools.builtins.codeinterpreter.kubernetes.api import ApiRefused
from antwort.tools.builtins.codeinterpreter.kubernetes.resources import INSTANCE_LABEL

NAMESPACE = "antwort-sandboxes"
GROUPS = {"versions": [{"version": "v1beta1"}]}
READY = {
    "conditions": [{"type": "Ready", "status": "True", "reason": "DependenciesReady"}],
    "sandbox": {"name": "warm"},
}


class RecordingApi(KubernetesApi):
    """An API with one claim, which becomes ready in a watch. `uses` are the permissions that requests need."""

    def __init__(self) -> None:
        super().__init__(SingleConfig("one", Context("one"), Cluster(server="http://127.0.0.1:9")))
        self.uses: set[tuple[str, str, str, str]] = set()
        self.methods: set[str] = set()
        self.claim: dict | None = None

    def use(self, verb: str, path: str) -> str | None:
        """Record a use of a resource; returns the name of the object."""
        _, _, group, _, _, namespace, resource, *name = path.split("/")
        self.uses.add((namespace, group, resource, verb))
        return name[0] if name else None

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        content_type: str = "application/json",
        params: Mapping[str, str] | None = None,
    ) -> bytes:
        self.methods.add(method)
        if path.count("/") == 2:  # discovery, which every account may read
            return json.dumps(GROUPS).encode()
        named = len(path.split("/")) > 7
        verbs = {"POST": "create", "PATCH": "patch", "DELETE": "delete", "GET": "get" if named else "list"}
        name = self.use(verbs[method], path)
        if "/sandboxes" in path:
            return json.dumps({"status": {"serviceFQDN": f"{name}.svc"}}).encode()
        if method == "POST":
            assert isinstance(body, dict)
            self.claim = {**body, "metadata": {**body["metadata"], "uid": "one", "resourceVersion": "1"}}
        elif method == "GET" and not named:
            return json.dumps({"items": [self.claim]}).encode()
        elif self.claim is None:
            raise ApiRefused("gone", 404)
        return json.dumps(self.claim).encode()

    async def watch(
        self, path: str, *, name: str, resource_version: str, silence: float
    ) -> AsyncGenerator[bytes, None]:
        self.use("watch", path)
        assert self.claim is not None
        self.claim["status"] = READY
        yield json.dumps({"type": "MODIFIED", "object": self.claim}).encode()


async def use_every_operation() -> RecordingApi:
    api = RecordingApi()
    first, next_process = (
        Claims(api, namespace=NAMESPACE, template="python", warm_pool="python", instance="one") for _ in range(2)
    )
    claim = await first.acquire(5)
    assert claim.metadata.labels[INSTANCE_LABEL] == "one"
    assert await first.address(claim) == "warm.svc"
    assert await first.loss_reason(claim) is None
    await first.renew(claim)
    assert await next_process.sweep_own() == 1
    await first.aclose()
    await next_process.aclose()
    return api


@pytest.mark.anyio
async def test_the_role_has_exactly_the_verbs_that_claims_use(objects: Objects):
    (role,) = objects.of_kind("Role")
    granted = {
        (role["metadata"]["namespace"], group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }

    assert (await use_every_operation()).uses == granted


@pytest.mark.anyio
async def test_the_recorded_operations_are_all_that_the_package_has():
    sources = [path.read_text(encoding="utf-8") for path in Path(kubernetes.__file__).parent.glob("*.py")]
    calls = [
        (ast.unparse(call.func), call.args)
        for source in sources
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call)
    ]
    of_api = {name for name, arguments in calls if name.startswith("self._api.") and arguments}
    methods = {
        arguments[0].value
        for name, arguments in calls
        if name in ("self._api.request", "self._call") and isinstance(arguments[0], ast.Constant)
    }

    assert of_api == {"self._api.request", "self._api.watch"}
    assert methods == (await use_every_operation()).methods


def test_the_role_is_bound_to_the_account_of_the_servers_only_and_nothing_is_cluster_wide(objects: Objects):
    (binding,) = objects.of_kind("RoleBinding")
    server = objects.pod_template("server")

    assert objects.of_kind("ClusterRole", "ClusterRoleBinding") == []
    assert binding["roleRef"]["name"] == objects.of_kind("Role")[0]["metadata"]["name"]
    assert binding["metadata"]["namespace"] == NAMESPACE
    assert [(one["kind"], one["namespace"], one["name"]) for one in binding["subjects"]] == [
        ("ServiceAccount", server.namespace, server.spec["serviceAccountName"])
    ]
