"""docs/kubernetes.md creates what the manifests need, with commands that work, and explains every reason of a claim."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pytest
from manifests import MANIFESTS, ROOT, Objects

from antwort.auth import KeyFile
from antwort.sealing import SealingKeys
from antwort.tools.builtins.codeinterpreter.kubernetes.resources import TERMINAL_REASONS

PAGE = ROOT / "docs" / "kubernetes.md"
WAITING_REASONS = {
    "SandboxMissing",
    "SandboxNotReady",
    "DependenciesNotReady",
    "AdoptionConflict",
    "SandboxCreatePending",
    "ReconcilerError",
}


@pytest.fixture(scope="module")
def commands() -> list[list[str]]:
    """The commands of the page, in words."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.startswith(("kubectl ", "antwort ", "ANTWORT_"))]


@pytest.fixture(scope="module")
def created(commands) -> dict[tuple[str, str], set[str]]:
    """The keys of each Secret that the page creates, by namespace and name."""
    found = {}
    for words in commands:
        if words[:4] == ["kubectl", "create", "secret", "generic"]:
            keys = {word.split("=")[1] for word in words if word.startswith(("--from-literal=", "--from-file="))}
            found[words[words.index("--namespace") + 1], words[4]] = keys
    return found


def test_the_page_creates_every_secret_that_the_manifests_read_with_its_keys(objects: Objects, created):
    for pod in objects.pod_templates:
        for name, key, _ in pod.secrets():
            assert key is None or key in created[pod.namespace, name], (pod.name, name)
            assert created[pod.namespace, name]


def test_the_page_creates_no_secret_that_nothing_reads(render, created):
    read = {
        (pod.namespace, name) for pod in render("postgres and gvisor").pod_templates for name, _, _ in pod.secrets()
    }

    assert set(created) == read


def test_the_objects_and_folders_that_the_commands_name_exist(render, commands):
    objects = render("base")
    names = {f"{one['kind'].lower()}/{one['metadata']['name']}" for one in objects}
    names |= {name.replace("/", " ") for name in names}
    for words in (words for words in commands if words[0] == "kubectl"):
        for kind in ("deployment", "service", "sandboxwarmpool"):
            for named in re.findall(rf"\b{kind}[/ ](?!-)\S+", " ".join(words)):
                assert named in names
        if "-k" in words:
            assert (ROOT / words[words.index("-k") + 1] / "kustomization.yaml").exists()
        for path in (words[index + 1] for index, word in enumerate(words) if word == "-f"):
            assert path.startswith("$AGENT_SANDBOX/") or (ROOT / path).exists()


def test_the_commands_for_keys_make_files_that_the_server_reads(commands, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    for words in commands:
        variables = dict(word.split("=", 1) for word in words if re.match(r"ANTWORT_\w+=", word))
        command = words[len(variables) :]
        if command[:2] == ["antwort", "keys"]:
            subprocess.run(
                [sys.executable, "-m", *command],
                cwd=tmp_path,
                env={**environment, **variables},
                check=True,
                capture_output=True,
            )

    assert [key.name for key in KeyFile(tmp_path / "keys.json").read()] == ["me"]
    assert len(SealingKeys.read(tmp_path / "compaction-keys.json").keys) == 1


def test_the_table_explains_every_reason_of_a_claim():
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    explained = {word for row in rows for word in re.findall(r"`(\w+)`", row.split("|")[1])}

    assert (TERMINAL_REASONS | WAITING_REASONS) - explained == set()


def test_the_page_names_every_folder_of_the_manifests():
    text = PAGE.read_text(encoding="utf-8")
    folders = {path.parent.relative_to(MANIFESTS).as_posix() for path in MANIFESTS.rglob("kustomization.yaml")}

    assert [folder for folder in sorted(folders) if f"`{folder}`" not in text] == []
