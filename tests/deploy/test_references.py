"""What the manifests name exists: labels, ports, ConfigMaps, Secrets, accounts, pools, probes, images."""

from __future__ import annotations

import json
import re
import tomllib

import pytest
from manifests import MANIFESTS, ROOT, Objects, PodTemplate, kustomize, quantity, read_base

from antwort.http.resources.health import routes

IMAGES = {
    name: f"deploy/{name.removeprefix('antwort-')}/Containerfile" for name in ("antwort-server", "antwort-sandbox")
}


def matches(selector: dict, labels: dict[str, str]) -> bool:
    assert set(selector) == {"matchLabels"}, "only matchLabels is used"
    return selector["matchLabels"].items() <= labels.items()


def selected(objects: Objects, namespace: str, selector: dict) -> list[PodTemplate]:
    return [one for one in objects.pod_templates if one.namespace == namespace and matches(selector, one.labels)]


def test_every_selector_of_a_workload_or_budget_selects_the_pods_of_one_workload(objects: Objects):
    for one in objects.of_kind("Deployment", "StatefulSet", "PodDisruptionBudget"):
        pods = selected(objects, one["metadata"]["namespace"], one["spec"]["selector"])
        assert [pod.name.split()[1] for pod in pods] == [one["metadata"]["name"]]
    for pod in objects.pod_templates:
        for constraint in pod.spec.get("topologySpreadConstraints", []):
            assert matches(constraint["labelSelector"], pod.labels)


def test_every_service_selects_one_workload_and_a_port_of_it(objects: Objects):
    services = objects.of_kind("Service")
    for one in services:
        (pod,) = selected(objects, one["metadata"]["namespace"], {"matchLabels": one["spec"]["selector"]})
        assert all(port["targetPort"] in pod.ports for port in one["spec"]["ports"])
    assert services


def test_every_namespace_is_declared_and_every_object_is_in_one(objects: Objects):
    declared = {one["metadata"]["name"] for one in objects.of_kind("Namespace")}
    used = {one["metadata"]["namespace"] for one in objects if one["kind"] != "Namespace"}

    assert used == declared == {"antwort", "antwort-sandboxes"}


def test_the_account_of_every_pod_exists_and_only_the_server_has_its_token(objects: Objects):
    accounts = {
        (one["metadata"]["namespace"], one["metadata"]["name"]): one for one in objects.of_kind("ServiceAccount")
    }
    assert all(account["automountServiceAccountToken"] is False for account in accounts.values())
    for pod in objects.pod_templates:
        component = pod.labels["app.kubernetes.io/component"]
        assert pod.spec["automountServiceAccountToken"] is (component == "server")
        assert component == "postgres" or (pod.namespace, pod.spec["serviceAccountName"]) in accounts


def test_every_autoscaler_scales_a_deployment_without_a_number_of_replicas(objects: Objects):
    for one in objects.of_kind("HorizontalPodAutoscaler"):
        target = objects.named("Deployment", one["spec"]["scaleTargetRef"]["name"])
        assert "replicas" not in target["spec"], "an apply would reset what the autoscaler has set"
        assert one["spec"]["minReplicas"] >= 2
        assert target["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"]


def test_the_volumes_of_every_pod_exist_and_no_mount_lies_in_another(objects: Objects):
    """A runtime cannot create a mount point in a volume that is read-only."""
    for pod in objects.pod_templates:
        claims = [one["metadata"]["name"] for one in pod.owner["spec"].get("volumeClaimTemplates", [])]
        volumes = [volume["name"] for volume in pod.spec["volumes"]] + claims
        mounts = pod.container["volumeMounts"]
        assert sorted(mount["name"] for mount in mounts) == sorted(volumes)
        paths = [mount["mountPath"] + "/" for mount in mounts]
        assert [path for path in paths for other in paths if path != other and path.startswith(other)] == []
        for volume in pod.spec["volumes"]:
            if "configMap" in volume:
                assert objects.named("ConfigMap", volume["configMap"]["name"])
            if "persistentVolumeClaim" in volume:
                assert objects.named("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])


def test_no_object_is_a_secret(objects: Objects):
    assert objects.of_kind("Secret") == []


def test_probes_ask_public_paths_of_the_server_at_its_port(objects: Objects):
    public = {route.path for route in routes if route.operation.public}
    server, sandbox = objects.pod_template("server"), objects.pod_template("sandbox")
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        request = server.container[name]["httpGet"]
        assert request["path"] in public
        assert request["port"] in server.ports
    assert server.container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert sandbox.container["readinessProbe"]["httpGet"] == {"path": "/health", "port": "http"}


def test_the_pool_has_a_template_and_fits_into_the_quota_with_claimed_pods(objects: Objects):
    (pool,) = objects.of_kind("SandboxWarmPool")
    sandbox = objects.pod_template("sandbox")
    hard = objects.named("ResourceQuota", "sandboxes")["spec"]["hard"]
    resources = sandbox.container["resources"]
    pods = int(hard["pods"])

    assert pool["spec"]["sandboxTemplateRef"]["name"] == sandbox.owner["metadata"]["name"]
    assert pods >= 2 * pool["spec"]["replicas"]
    assert quantity(hard["requests.cpu"]) >= pods * quantity(resources["requests"]["cpu"])
    assert quantity(hard["requests.memory"]) >= pods * quantity(resources["requests"]["memory"])
    assert quantity(hard["limits.memory"]) >= pods * quantity(resources["limits"]["memory"])


def test_images_are_those_of_this_version_with_the_ports_and_the_user_of_their_containerfiles(objects: Objects):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    for component in ("server", "sandbox"):
        pod = objects.pod_template(component)
        repository, _, tag = pod.container["image"].rpartition(":")
        text = (ROOT / IMAGES[repository.rpartition("/")[2]]).read_text(encoding="utf-8")
        user = pod.spec["securityContext"]["runAsUser"]
        assert tag == version
        assert f'org.opencontainers.image.version="{version}"' in text
        assert f"EXPOSE {pod.ports['http']}\n" in text
        assert f"USER {user}:{pod.spec['securityContext']['runAsGroup']}\n" in text


def test_every_file_of_the_manifests_is_used():
    files = {path for path in MANIFESTS.rglob("*.yaml") if path.name != "kustomization.yaml"}
    unused = [
        path.relative_to(MANIFESTS).as_posix()
        for path in sorted(files)
        if path.name not in (path.parent / "kustomization.yaml").read_text(encoding="utf-8")
    ]

    assert unused == []


def test_the_base_that_is_read_without_kustomize_is_the_one_that_it_renders(base: Objects):
    if kustomize() is None:
        pytest.skip("no kustomize")

    def comparable(objects: list[dict]) -> list[str]:
        return sorted(
            re.sub(r"antwort-config-\w+", "antwort-config", json.dumps(one, sort_keys=True)) for one in objects
        )

    assert comparable(read_base()) == comparable(base)
