"""The configuration of the manifests is one that the server accepts, and agrees with the pods and the network."""

from __future__ import annotations

import re

import pytest
from manifests import Objects, quantity

from antwort.config import (
    Config,
    ConfigError,
    ResponsesModel,
    api_keys_path,
    compaction_keys_path,
    parse,
)
from antwort.sandbox.limits import TIERS
from antwort.sandbox.server.settings import SandboxSettings, from_environment

RELEASE_SECONDS = 15
"""What a server needs beyond the time for running requests: to release its claims and to close the store."""


@pytest.fixture
def config(objects: Objects) -> Config:
    return parse(objects.configuration()["antwort.yaml"], environment(objects))


def environment(objects: Objects, *, service_links: bool = False) -> dict[str, str]:
    """The variables of the server's container, with the address of a pod and values for Secrets."""
    values = {"POD_IP": "10.1.2.3", "ANTWORT_STORAGE_URL": "postgresql://antwort@db/antwort", "SANDBOX_TOKEN": "secret"}
    for name, variable in objects.pod_template("server").environment.items():
        if "value" in variable:
            values[name] = re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], variable["value"])
        assert name in values
    if service_links:
        values |= {"ANTWORT_SERVICE_HOST": "10.0.0.7", "ANTWORT_PORT": "tcp://10.0.0.7:8080"}
    return values


def test_the_server_reads_keys_and_configuration_where_they_are_mounted(objects: Objects, config: Config):
    server = objects.pod_template("server")
    mounts = {mount["name"]: mount["mountPath"] for mount in server.container["volumeMounts"]}
    (secrets,) = [volume for volume in server.spec["volumes"] if volume["name"] == "secrets"]
    mounted = {
        f"{mounts['secrets']}/{item['path']}"
        for one in secrets["projected"]["sources"]
        for item in one["secret"]["items"]
    }

    assert server.container["args"] == ["serve", "--config", f"{mounts['config']}/antwort.yaml"]
    assert {str(api_keys_path(config)), str(compaction_keys_path(config))} == mounted
    assert secrets["projected"]["defaultMode"] == 0o440, "the mode that PrivateFile accepts of files of root"
    for model in config.models.named.values():
        script = getattr(model, "script", None)
        assert script is None or script.removeprefix(mounts["config"] + "/") in objects.configuration()
    if "://" not in config.storage.blobs:
        state = mounts["state"]
        assert config.storage.blobs.startswith(state + "/"), "the root file system is read-only"


def test_upstream_keys_come_from_variables_that_no_setting_has(config: Config):
    keys = [model.api_key_env for model in config.models.named.values() if isinstance(model, ResponsesModel)]

    assert [key for key in keys if key is not None and key.startswith("ANTWORT_")] == []


def test_the_code_interpreter_claims_from_the_pool_of_the_manifests(objects: Objects, config: Config):
    (pool,) = objects.of_kind("SandboxWarmPool")
    settings = config.providers.code_interpreter
    sandbox = objects.pod_template("sandbox")

    assert settings.enabled is True
    assert settings.sandbox_template == pool["spec"]["sandboxTemplateRef"]["name"]
    assert settings.sandbox_warm_pool == pool["metadata"]["name"]
    assert settings.sandbox_namespace == pool["metadata"]["namespace"] == sandbox.namespace
    assert settings.sandbox_port == sandbox.ports["http"]
    token = objects.pod_template("server").environment[settings.sandbox_token_env or ""]
    assert token["valueFrom"] == sandbox.environment["SANDBOX_TOKEN"]["valueFrom"]


def test_sandbox_pods_are_single_use_and_larger_than_every_memory_tier(objects: Objects, config: Config):
    sandbox = objects.pod_template("sandbox")
    values = {name: variable.get("value", "secret") for name, variable in sandbox.environment.items()}
    settings = from_environment(values, host="192.0.2.1")  # beyond loopback, where a token is required
    settings.check()
    limits, tiers = sandbox.container["resources"]["limits"], config.containers.tiers

    assert set(values) <= {f"SANDBOX_{name.upper()}" for name in SandboxSettings.__dataclass_fields__}
    assert settings.single_tenant
    assert sandbox.spec["restartPolicy"] == "Never", "a restarted server would not know of an earlier use"
    assert settings.waived - {"namespaces"} == (
        {"landlock"} if sandbox.spec.get("runtimeClassName") == "gvisor" else set()
    )
    assert quantity(limits["memory"]) >= 1.25 * max(TIERS[tier] for tier in tiers)


def test_the_time_of_a_pod_to_end_covers_running_requests(objects: Objects, config: Config):
    server = objects.pod_template("server")
    pause = server.container["lifecycle"]["preStop"]["sleep"]["seconds"]

    assert server.spec["terminationGracePeriodSeconds"] >= pause + config.server.shutdown_timeout + RELEASE_SECONDS


def test_several_replicas_share_their_blobs_and_one_directory_has_one_replica(objects: Objects, config: Config):
    deployment = objects.named("Deployment", "antwort")["spec"]
    if objects.of_kind("HorizontalPodAutoscaler"):
        assert config.storage.blobs.startswith("s3://")
    else:
        assert deployment["replicas"] == 1
        assert deployment["strategy"]["type"] == "Recreate"


def test_variables_of_service_links_are_not_set_because_the_server_refuses_them(objects: Objects):
    for pod in objects.pod_templates:
        assert pod.spec["enableServiceLinks"] is False
    with pytest.raises(ConfigError, match="ANTWORT_PORT: unknown"):
        parse(objects.configuration()["antwort.yaml"], environment(objects, service_links=True))
