"""Every object is valid: for Kubernetes by its JSON schemas, without unknown fields; for agent-sandbox by its CRDs."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from manifests import ROOT, Objects

CRDS = ROOT.parent / "shared" / "reference" / "crds"
VERSIONS = "1.30", "1.33", "1.37"
"""The oldest Kubernetes that docs/kubernetes.md names, and newer ones."""


def is_custom(one: dict) -> bool:
    return one["apiVersion"].split("/")[0].endswith(".x-k8s.io")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_of_kubernetes_matches_its_schema(objects: Objects, version):
    checked = [one for one in objects if not is_custom(one)]
    for one in checked:
        kubernetes_validate.validate(one, version, strict=True)

    assert len(checked) > 12


@pytest.mark.parametrize("version", VERSIONS)
def test_the_pods_of_a_sandbox_template_match_the_schema_of_pods(objects: Objects, version):
    for template in objects.of_kind("SandboxTemplate"):
        pod = template["spec"]["podTemplate"]
        kubernetes_validate.validate(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod", **pod["metadata"]}, "spec": pod["spec"]},
            version,
            strict=True,
        )


def test_every_custom_object_matches_the_schema_of_its_definition(objects: Objects):
    checked = [one for one in objects if is_custom(one)]
    for one in checked:
        validator(one["kind"], one["apiVersion"]).validate(one)

    assert sorted(one["kind"] for one in checked) == ["SandboxTemplate", "SandboxWarmPool"]


@pytest.mark.parametrize(
    "kind,path,value",
    [
        ("Deployment", ("spec", "template", "spec", "containers", 0, "imagePullPolicies"), "Always"),
        ("Deployment", ("spec", "selector"), "server"),
        ("HorizontalPodAutoscaler", ("spec", "minReplicas"), "two"),
        ("NetworkPolicy", ("spec", "ingres"), []),
        ("SandboxTemplate", ("spec", "networkPolicyManagement"), "Sometimes"),
        ("SandboxTemplate", ("spec", "podTemplate", "spec", "runtimeClass"), "gvisor"),
        ("SandboxWarmPool", ("spec", "replicas"), -1),
        ("SandboxWarmPool", ("spec", "templateRef"), {}),
    ],
)
def test_an_object_with_a_mistake_is_refused(base: Objects, kind, path, value):
    one = copy.deepcopy(base.of_kind(kind)[0])
    inner = one
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value

    with pytest.raises((kubernetes_validate.ValidationError, jsonschema.ValidationError)):
        check(one)


def check(one: dict) -> None:
    if is_custom(one):
        validator(one["kind"], one["apiVersion"]).validate(one)
    else:
        kubernetes_validate.validate(one, VERSIONS[0], strict=True)


@cache
def validator(kind: str, api_version: str) -> jsonschema.Draft202012Validator:
    """Validator of a custom resource, for which unknown fields are errors."""
    if not CRDS.exists():
        pytest.skip(f"the definitions of agent-sandbox are not at {CRDS}")
    for spec in (one["spec"] for path in sorted(CRDS.glob("*.yaml")) for one in read(path)):
        for version in spec["versions"]:
            if (spec["names"]["kind"], f"{spec['group']}/{version['name']}") == (kind, api_version):
                schema = version["schema"]["openAPIV3Schema"]
                schema["properties"]["metadata"] = {"type": "object"}
                for inner in schema["properties"].values():
                    forbid_unknown_fields(inner)
                return jsonschema.Draft202012Validator(schema)
    raise AssertionError(f"no definition of {kind} in {api_version}")


def read(path: Path) -> list[dict]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster, where PyYAML has it
    return [one for one in yaml.load_all(path.read_text(encoding="utf-8"), loader) if one]


def forbid_unknown_fields(node: object) -> None:
    if isinstance(node, list):
        for one in node:
            forbid_unknown_fields(one)
    elif isinstance(node, dict):
        if "properties" in node and not node.get("x-kubernetes-preserve-unknown-fields"):
            node.setdefault("additionalProperties", False)
        for one in node.values():
            forbid_unknown_fields(one)
