"""Every pod template is within the Pod Security Standard "restricted", and has a read-only root and resources."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from manifests import Objects

VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
CONTAINERS = "initContainers", "containers", "ephemeralContainers"


def violations(spec: dict[str, Any]) -> list[str]:
    """The rules of the standard that a pod violates."""
    pod = spec.get("securityContext", {})
    found = [name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    found += [f"volume {set(volume)}" for volume in spec.get("volumes", []) if set(volume) - {"name"} - VOLUMES]
    found += [name for name in ("sysctls", "seLinuxOptions", "windowsOptions") if pod.get(name)]
    for container in (one for kind in CONTAINERS for one in spec.get(kind, [])):
        found += container_violations(pod, container)
    return found


def container_violations(pod: dict[str, Any], container: dict[str, Any]) -> list[str]:
    """The same for a container; what it does not set, it has from its pod."""
    own = container.get("securityContext", {})
    both = {**pod, **own}
    capabilities = own.get("capabilities", {})
    rules = {
        "privileges": own.get("privileged") or own.get("allowPrivilegeEscalation") is not False,
        "capabilities that are not dropped": "ALL" not in capabilities.get("drop", []),
        "added capabilities": set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"},
        "root": both.get("runAsNonRoot") is not True or both.get("runAsUser") == 0,
        "seccomp": both.get("seccompProfile", {}).get("type") not in {"RuntimeDefault", "Localhost"},
        "procMount": own.get("procMount", "Default") != "Default",
        "SELinux": own.get("seLinuxOptions"),
        "hostPort": any("hostPort" in port for port in container.get("ports", [])),
    }
    return [name for name, is_violated in rules.items() if is_violated]


def test_every_pod_is_within_the_restricted_standard(objects: Objects):
    for pod in objects.pod_templates:
        assert violations(pod.spec) == [], pod.name


def test_every_namespace_enforces_the_restricted_standard(objects: Objects):
    for one in objects.of_kind("Namespace"):
        levels = {name.split("/")[1]: level for name, level in one["metadata"]["labels"].items() if "pod-secu" in name}
        assert levels == {"enforce": "restricted", "audit": "restricted", "warn": "restricted"}


def test_every_container_has_a_read_only_root_a_numeric_user_and_bounded_memory(objects: Objects):
    for pod in objects.pod_templates:
        assert pod.container["securityContext"]["readOnlyRootFilesystem"] is True
        assert pod.spec["securityContext"]["runAsUser"] > 0
        assert pod.container["resources"]["requests"].keys() >= {"cpu", "memory"}
        assert "memory" in pod.container["resources"]["limits"]
        own = pod.labels["app.kubernetes.io/component"] in {"server", "sandbox"}
        for volume in pod.spec["volumes"]:
            assert not own or "emptyDir" not in volume or volume["emptyDir"]["sizeLimit"]


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: spec.update(hostNetwork=True),
        lambda spec: spec["volumes"].append({"name": "host", "hostPath": {"path": "/"}}),
        lambda spec: spec["securityContext"].update(runAsUser=0),
        lambda spec: spec["securityContext"].pop("runAsNonRoot"),
        lambda spec: spec["securityContext"].pop("seccompProfile"),
        lambda spec: spec["containers"][0].pop("securityContext"),
        lambda spec: spec["containers"][0]["securityContext"].update(allowPrivilegeEscalation=True),
        lambda spec: spec["containers"][0]["securityContext"]["capabilities"].update(add=["SYS_ADMIN"]),
        lambda spec: spec["containers"][0]["securityContext"].update(procMount="Unmasked"),
        lambda spec: spec["containers"][0]["ports"][0].update(hostPort=8080),
        lambda spec: spec.update(initContainers=[{"name": "first"}]),
    ],
)
def test_a_pod_with_more_rights_is_found(base: Objects, change: Callable[[dict[str, Any]], object]):
    spec = copy.deepcopy(base.pod_template("sandbox").spec)
    change(spec)

    assert violations(spec)
