"""The manifests of deploy/kubernetes, rendered by kustomize: objects, pod templates, and references between them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "deploy" / "kubernetes"
COMBINATIONS = {
    "base": ["base"],
    "local": ["overlays/local"],
    "production": ["overlays/production"],
    "kata": ["base", "components/kata"],
    "postgres and gvisor": ["base", "components/postgres", "components/gvisor"],
}
"""What is rendered: an overlay, or the base with components."""

_MIN_KUSTOMIZE = (4, 2)  # older ones, in kubectl before 1.22, know no components


@cache
def kustomize() -> tuple[str, ...] | None:
    """The command that renders a folder; None if there is none."""
    for command, version in ((("kustomize", "build"), ("kustomize", "version")), (("kubectl", "kustomize"), None)):
        if (program := shutil.which(command[0])) is None:
            continue
        asked = [program, *(version[1:] if version else ("version", "--client", "--output=yaml"))]
        output = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
        found = re.search(r"^(?:kustomizeVersion: )?v(\d+)\.(\d+)", output, re.MULTILINE)
        if found and (int(found[1]), int(found[2])) >= _MIN_KUSTOMIZE:
            return (program, *command[1:])
    return None


def render(folder: Path) -> list[dict[str, Any]]:
    """The objects of a folder with a kustomization. Without kustomize only the base, and a skip for others."""
    command = kustomize()
    if command is None:
        if folder == MANIFESTS / "base":
            return read_base()
        pytest.skip("no kustomize 4.2 or newer: install kustomize, or kubectl 1.22 or newer")
    rendered = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=False)
    assert rendered.returncode == 0, rendered.stderr
    return list(yaml.safe_load_all(rendered.stdout))


def read_base() -> list[dict[str, Any]]:
    """The objects of the base, read without kustomize. Its ConfigMap has no hash in its name."""
    folder = MANIFESTS / "base"
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    texts = [(folder / name).read_text(encoding="utf-8") for name in kustomization["resources"]]
    for image in kustomization["images"]:
        texts = [
            re.sub(rf"\bimage: {image['name']}$", rf"\g<0>:{image['newTag']}", text, flags=re.MULTILINE)
            for text in texts
        ]
    objects = [one for text in texts for one in yaml.safe_load_all(text)]
    for one in kustomization["configMapGenerator"]:
        metadata = {"name": one["name"], "namespace": one["namespace"]}
        data = {name: (folder / name).read_text(encoding="utf-8") for name in one["files"]}
        objects.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    return objects


def render_combination(name: str, directory: Path) -> Objects:
    """The objects of one of `COMBINATIONS`."""
    first, *components = COMBINATIONS[name]
    if not components:
        return Objects(render(MANIFESTS / first))
    kustomization = {
        "resources": [os.path.relpath(MANIFESTS / first, directory)],
        "components": [os.path.relpath(MANIFESTS / component, directory) for component in components],
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(kustomization), encoding="utf-8")
    return Objects(render(directory))


class Objects(list[dict[str, Any]]):
    """The objects of one rendering."""

    def of_kind(self, *kinds: str) -> list[dict[str, Any]]:
        return [one for one in self if one["kind"] in kinds]

    def named(self, kind: str, name: str) -> dict[str, Any]:
        (found,) = [one for one in self.of_kind(kind) if one["metadata"]["name"] == name]
        return found

    @property
    def pod_templates(self) -> list[PodTemplate]:
        """The pod templates of workloads and of SandboxTemplates."""
        return [
            PodTemplate(one, one["spec"]["podTemplate" if one["kind"] == "SandboxTemplate" else "template"])
            for one in self.of_kind("Deployment", "StatefulSet", "SandboxTemplate")
        ]

    def pod_template(self, component: str) -> PodTemplate:
        (found,) = [one for one in self.pod_templates if one.labels["app.kubernetes.io/component"] == component]
        return found

    def configuration(self) -> dict[str, str]:
        """The files of the ConfigMap that the server mounts."""
        (volume,) = [one for one in self.pod_template("server").spec["volumes"] if one["name"] == "config"]
        return self.named("ConfigMap", volume["configMap"]["name"])["data"]


class PodTemplate:
    """A pod template and the object that it belongs to."""

    def __init__(self, owner: dict[str, Any], template: dict[str, Any]) -> None:
        self.name = f"{owner['kind']} {owner['metadata']['name']}"
        self.owner = owner
        self.namespace: str = owner["metadata"]["namespace"]
        self.labels: dict[str, str] = template["metadata"]["labels"]
        self.spec: dict[str, Any] = template["spec"]

    @property
    def container(self) -> dict[str, Any]:
        """Its only container."""
        (container,) = self.spec["containers"]
        return container

    @property
    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for port in self.container["ports"]}

    @property
    def environment(self) -> dict[str, dict[str, Any]]:
        return {variable["name"]: variable for variable in self.container.get("env", [])}

    def secrets(self) -> Iterator[tuple[str, str | None, bool]]:
        """Name, key and optionality of each Secret that it reads. Without a key, all keys."""
        for variable in self.environment.values():
            if reference := variable.get("valueFrom", {}).get("secretKeyRef"):
                yield reference["name"], reference["key"], reference.get("optional", False)
        for source in self.container.get("envFrom", []):
            yield source["secretRef"]["name"], None, source["secretRef"].get("optional", False)
        for volume in self.spec["volumes"]:
            for source in volume.get("projected", {}).get("sources", []):
                for item in source["secret"]["items"]:
                    yield source["secret"]["name"], item["key"], source["secret"].get("optional", False)


def quantity(text: str | int) -> float:
    """The number of a Kubernetes quantity, such as `1536Mi` or `250m`."""
    found = re.fullmatch(r"([0-9.]+)(m|Ki|Mi|Gi|Ti|)", str(text))
    assert found, text
    factors = {"m": 1e-3, "": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
    return float(found[1]) * factors[found[2]]
