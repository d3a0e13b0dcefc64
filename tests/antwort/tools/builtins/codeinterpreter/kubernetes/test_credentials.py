from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from fake_kubernetes_api import fake_kubernetes_api
from private_ca import PrivateCa
from waiting import wait_until_async

from antwort.tools.builtins.codeinterpreter.kubernetes.api import (
    ApiRefused,
    ApiUnreachable,
    KubeconfigError,
    KubernetesApi,
)
from antwort.tools.builtins.codeinterpreter.kubernetes.credentials import ExecCredentials

pytestmark = pytest.mark.anyio

EXEC_V1 = "client.authentication.k8s.io/v1"


@pytest.fixture
def authority(tmp_path):
    return PrivateCa(tmp_path)


@pytest.fixture
async def api(authority):
    async with fake_kubernetes_api(authority.server_context) as api:
        yield api


@asynccontextmanager
async def opened(api, authority, tmp_path, user):
    """A client with the credentials of this user of a kubeconfig."""
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(api.kubeconfig(user, str(authority.ca_file))), encoding="utf-8")
    client = await asyncio.to_thread(KubernetesApi.from_kubeconfig, str(path))
    try:
        yield client
    finally:
        await client.aclose()


async def get(client):
    await client.request("GET", "/apis/extensions.agents.x-k8s.io")


def program(tmp_path, script, **more):
    """A user with a credential program, which is a shell script beside the kubeconfig."""
    path = tmp_path / "program"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o700)
    return {"exec": {"apiVersion": EXEC_V1, "command": "./program", **more}}


def credential(token, **status):
    return json.dumps({"apiVersion": EXEC_V1, "kind": "ExecCredential", "status": {"token": token, **status}})


async def test_a_service_account_with_a_token_that_is_rotated(api, authority, tmp_path, monkeypatch):
    account = tmp_path / "serviceaccount"
    account.mkdir()
    (account / "ca.crt").write_bytes(authority.ca_file.read_bytes())
    (account / "namespace").write_text("sandboxes", encoding="utf-8")
    (account / "token").write_text("first", encoding="utf-8")
    host, _, port = api.url.removeprefix("https://").partition(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    client = await asyncio.to_thread(KubernetesApi.from_kubeconfig, None, service_account=str(account))
    assert client.namespace == "sandboxes"
    api.tokens = {"first"}
    await get(client)

    (account / "token").write_text("second", encoding="utf-8")
    await get(client)  # the first one is valid for a while
    api.tokens = {"second"}
    await get(client)
    sent = [one.headers["authorization"] for one in api.requests]
    assert sent == ["Bearer first", "Bearer first", "Bearer first", "Bearer second"]

    api.tokens = {"third"}
    with pytest.raises(ApiRefused, match="401"):
        await get(client)
    (account / "token").unlink()
    with pytest.raises(ApiUnreachable, match="no credentials for the Kubernetes API: Token file"):
        await get(client)
    await client.aclose()


async def test_without_a_service_account_the_kubeconfig_of_the_environment_is_used(
    api, authority, tmp_path, monkeypatch
):
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(api.kubeconfig({"token": "static"}, authority.ca_file.name)), encoding="utf-8")
    monkeypatch.setenv("KUBECONFIG", str(path))
    client = await asyncio.to_thread(KubernetesApi.from_kubeconfig, None, service_account=str(tmp_path / "none"))
    api.tokens = {"static"}
    await get(client)  # the path of the authority is relative to the kubeconfig
    await client.aclose()


async def test_a_server_with_another_authority_is_not_trusted(api, tmp_path):
    (tmp_path / "other").mkdir()
    async with opened(api, PrivateCa(tmp_path / "other"), tmp_path, {"token": "secret"}) as client:
        with pytest.raises(ApiUnreachable, match="certificate verify failed"):
            await get(client)
    assert api.requests == []


@pytest.mark.parametrize(
    "section, key, value",
    [
        ("cluster", "proxy-url", "http://proxy.example:3128"),
        ("cluster", "tls-server-name", "kubernetes.example"),
        ("user", "as", "someone"),
    ],
)
async def test_a_setting_of_a_kubeconfig_that_is_not_supported_is_an_error_at_start(api, tmp_path, section, key, value):
    config = api.kubeconfig({"token": "secret"})
    config[f"{section}s"][0][section][key] = value
    config[f"{section}s"].append({"name": "other", section: {key: value}})
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(KubeconfigError, match=f"'{key}' of the {section} '{section[0]}' is not supported"):
        await asyncio.to_thread(KubernetesApi.from_kubeconfig, str(path))

    config[f"{section}s"][0][section][key] = None  # that of another cluster or user does not matter
    path.write_text(json.dumps(config), encoding="utf-8")
    await (await asyncio.to_thread(KubernetesApi.from_kubeconfig, str(path))).aclose()


async def test_an_authority_that_is_replaced_on_disk_is_read_again(api, authority, tmp_path):
    (tmp_path / "other").mkdir()
    valid, other = authority.ca_file.read_bytes(), PrivateCa(tmp_path / "other").ca_file.read_bytes()
    authority.ca_file.write_bytes(other)
    async with opened(api, authority, tmp_path, {"token": "secret"}) as client:
        with pytest.raises(ApiUnreachable, match="certificate verify failed"):
            await get(client)
        authority.ca_file.write_bytes(valid[: len(valid) // 2])  # not complete yet: that before stays in use
        with pytest.raises(ApiUnreachable, match="certificate verify failed"):
            await get(client)
        authority.ca_file.write_bytes(valid)
        await get(client)
        replacement = tmp_path / "replacement"
        replacement.write_bytes(other)
        replacement.replace(authority.ca_file)
        with pytest.raises(ApiUnreachable, match="certificate verify failed"):  # the idle connection is not used
            await get(client)


async def test_a_client_certificate_that_is_replaced_on_disk_is_used_for_the_next_request(authority, tmp_path):
    authority.server_context.load_verify_locations(authority.ca_file)
    authority.server_context.verify_mode = ssl.CERT_REQUIRED
    user = {"client-certificate": "client.pem", "client-key": "client.key"}
    async with fake_kubernetes_api(authority.server_context) as api:
        authority.issue_client("first", tmp_path / "client.pem", tmp_path / "client.key")
        async with opened(api, authority, tmp_path, user) as client:
            await get(client)
            authority.issue_client("second", tmp_path / "client.pem", tmp_path / "unused.key")
            await get(client)  # certificate and key do not match yet
            (tmp_path / "unused.key").replace(tmp_path / "client.key")
            await get(client)
        assert api.peers == ["first", "first", "second"]


async def test_a_token_file_is_relative_to_the_kubeconfig(api, authority, tmp_path):
    (tmp_path / "token").write_text("from a file\n", encoding="utf-8")
    api.tokens = {"from a file"}
    async with opened(api, authority, tmp_path, {"tokenFile": "token"}) as client:
        await get(client)


@pytest.mark.parametrize("content", [b"\xff", b"first\nsecond", None])
async def test_a_token_that_cannot_be_read_or_sent(api, authority, tmp_path, content):
    if content is None:
        (tmp_path / "token").mkdir()
    else:
        (tmp_path / "token").write_bytes(content)
    async with opened(api, authority, tmp_path, {"tokenFile": "token"}) as client:
        with pytest.raises(ApiUnreachable):
            await get(client)


async def test_a_credential_program_runs_once_for_many_requests(api, authority, tmp_path):
    script = f"""echo run >> runs; cat > /dev/null; echo '{credential("from a program")}'"""
    user = program(tmp_path, f"cd {tmp_path}; {script}")
    api.tokens = {"from a program"}
    async with opened(api, authority, tmp_path, user) as client:
        await asyncio.gather(*(get(client) for _ in range(5)))
    assert (tmp_path / "runs").read_text(encoding="utf-8") == "run\n"


async def test_a_credential_program_runs_again_for_a_rejected_and_for_an_expired_token(api, authority, tmp_path):
    user = program(tmp_path, f'cat "{tmp_path}/credential"')
    api.tokens = {"first"}
    (tmp_path / "credential").write_text(credential("first"), encoding="utf-8")
    async with opened(api, authority, tmp_path, user) as client:
        await get(client)
        (tmp_path / "credential").write_text(
            credential("second", expirationTimestamp="2026-01-01T00:00:00Z"), encoding="utf-8"
        )
        api.tokens = {"second"}
        await get(client)
        (tmp_path / "credential").write_text(credential("third"), encoding="utf-8")
        api.tokens = {"third"}
        await get(client)
    assert [one.headers["authorization"] for one in api.requests][-1] == "Bearer third"
    assert api.count("GET") == 4  # a 401 for the first one; the second one is not sent after its expiry


async def test_a_credential_program_gets_its_variables_and_arguments(api, authority, tmp_path):
    script = """test -n "$KUBERNETES_EXEC_INFO" && printf '{"status": {"token": "%s-%s"}}' "$1" "$NAME" """
    user = program(tmp_path, script, args=["get"], env=[{"name": "NAME", "value": "value"}])
    api.tokens = {"get-value"}
    async with opened(api, authority, tmp_path, user) as client:
        await get(client)


@pytest.mark.parametrize(
    "script, message",
    [
        ("echo no access >&2; exit 3", "ended with 3: no access"),
        ("echo nonsense", "malformed"),
        ("echo '{}'", "returned no token"),
        ("""echo '{"status": {"token": "a", "expirationTimestamp": "2030-01-01T00:00:00"}}'""", "timezone"),
        ('rm "$0"; exit 0', "malformed|truncated"),
    ],
)
async def test_a_credential_program_that_fails_is_named(api, authority, tmp_path, script, message):
    async with opened(api, authority, tmp_path, program(tmp_path, script)) as client:
        with pytest.raises(ApiUnreachable, match=f"no credentials for the Kubernetes API: .*program.*({message})"):
            await get(client)
    assert api.requests == []


async def test_a_missing_credential_program_is_named(api, authority, tmp_path):
    user = {"exec": {"apiVersion": EXEC_V1, "command": "no-such-program"}}
    async with opened(api, authority, tmp_path, user) as client:
        with pytest.raises(ApiUnreachable, match=r"no-such-program: .*No such file"):
            await get(client)


async def test_a_credential_program_that_hangs_is_ended(api, authority, tmp_path):
    user = program(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 600")
    async with opened(api, authority, tmp_path, user) as client:
        credentials = client._client.auth
        assert isinstance(credentials, ExecCredentials)
        credentials._timeout = 0.5
        with pytest.raises(ApiUnreachable, match=r"has not ended within 0\.5 s"):
            await get(client)
        pid = int((tmp_path / "pid").read_text(encoding="utf-8"))
        assert not is_running(pid)

        (tmp_path / "pid").unlink()
        credentials._timeout = 600
        request = asyncio.create_task(get(client))
        await wait_until_async(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(encoding="utf-8"))
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        assert not is_running(int((tmp_path / "pid").read_text(encoding="utf-8")))


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_an_unknown_version_of_credential_programs_is_an_error_at_start(api, authority, tmp_path):
    user = program(tmp_path, "true", apiVersion="client.authentication.k8s.io/v7")
    with pytest.raises(KubeconfigError, match="v7' is none of client"):
        async with opened(api, authority, tmp_path, user):
            pass


@pytest.mark.kubernetes
@pytest.mark.parametrize("kind", ["files", "inline", "none"])
async def test_a_client_certificate(certificate, kind):
    """A real API server, which accepts certificates of its authority only."""
    client = await asyncio.to_thread(KubernetesApi.from_kubeconfig, str(certificate(kind)))
    request = client.request("GET", "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/default/sandboxclaims")
    if kind == "none":
        with pytest.raises((ApiRefused, ApiUnreachable)):
            await request
    else:
        await request
    await client.aclose()


@pytest.fixture
def certificate(kubeconfig, tmp_path):
    """Writes the kubeconfig of the API server with certificates in files, inline, or without that of the client."""

    def write(kind):
        config = yaml.safe_load(Path(kubeconfig).read_text(encoding="utf-8"))
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        if "client-certificate" not in user:
            pytest.skip("the kubeconfig has no client certificate")
        if kind == "none":
            config["users"][0]["user"] = {}
        if kind == "inline":
            for one, names in ((cluster, ["certificate-authority"]), (user, ["client-certificate", "client-key"])):
                for name in names:
                    one[f"{name}-data"] = base64.b64encode(Path(one.pop(name)).read_bytes()).decode()
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(config), encoding="utf-8")
        return path

    return write
