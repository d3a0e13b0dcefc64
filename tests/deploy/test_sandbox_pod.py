"""Code in a pod of the SandboxTemplate: what a model is promised works with the volumes that the pod mounts."""

from __future__ import annotations

from fixtures_restricted_pod import restricted_pod
from manifests import Objects, quantity

from antwort.sandbox.jail import mounts


def test_code_finds_its_files_at_mnt_data(base: Objects, tmp_path):
    """The description of the tool names this directory, and models write such paths."""
    paths = [mount["mountPath"] for mount in base.pod_template("sandbox").container["volumeMounts"]]

    with restricted_pod(tmp_path, has_volume=mounts.DATA in paths, modules="json") as pod:
        session = pod.client.session(tenant="first")
        ran = pod.client.run(session, "open('/mnt/data/a.txt', 'w').write('a'); import os; print(os.getcwd())")
        assert (ran["status"], ran["stdout"]) == ("success", "/mnt/data\n"), ran
        assert pod.client.call("GET", f"/sessions/{session}/files/a.txt").body == b"a"


def test_the_disk_of_a_sandbox_pod_holds_its_full_volumes(base: Objects):
    """The kubelet evicts a pod above the limit of its ephemeral storage."""
    pod = base.pod_template("sandbox")
    volumes = [quantity(volume["emptyDir"]["sizeLimit"]) for volume in pod.spec["volumes"]]

    assert quantity(pod.container["resources"]["limits"]["ephemeral-storage"]) > sum(volumes)
