from __future__ import annotations

import os
import subprocess
import sys

import pytest
from fixtures_sandbox_server import sandbox_server

from antwort.config import CodeInterpreterSettings, ConfigError
from antwort.containers.sandboxes.backends import open_backend
from antwort.containers.sandboxes.local import LocalSandboxes
from antwort.containers.sandboxes.remote import RemoteSandboxes
from antwort.tools.builtins.codeinterpreter.kubernetes import KubernetesSandboxes

pytestmark = pytest.mark.anyio

NO_JAIL = {**os.environ, "SANDBOX_MODE": "node"}


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with sandbox_server(tmp_path_factory.mktemp("sandbox")) as server:
        yield server


async def test_the_default_backend_is_local(tmp_path):
    backend = await open_backend(CodeInterpreterSettings(), tmp_path, os.environ)

    assert isinstance(backend.sandboxes, LocalSandboxes)
    assert backend.description == "in the jail of this machine"
    await backend.sandboxes.aclose()


async def test_without_a_jail_the_backend_is_off_with_a_reason(tmp_path):
    backend = await open_backend(CodeInterpreterSettings(), tmp_path, NO_JAIL)

    assert backend.sandboxes is None
    for words in ("off: SANDBOX_MODE=node", "antwort doctor", "sandbox_url", "extra `sandbox`"):
        assert words in backend.description


async def test_enabled_without_a_jail_is_a_config_error(tmp_path):
    with pytest.raises(
        ConfigError, match=r"code_interpreter\.enabled: no code can be run on this machine: SANDBOX_MODE"
    ):
        await open_backend(CodeInterpreterSettings(enabled=True), tmp_path, NO_JAIL)


async def test_disabled_by_the_configuration(tmp_path):
    backend = await open_backend(CodeInterpreterSettings(enabled=False), tmp_path, NO_JAIL)

    assert (backend.sandboxes, backend.description) == (None, "off, as the configuration says")


async def test_sandbox_url_selects_the_remote_backend(tmp_path, running):
    settings = CodeInterpreterSettings(sandbox_url=running.url, sandbox_token_env="KEY")
    backend = await open_backend(settings, tmp_path, {"KEY": running.token})

    assert isinstance(backend.sandboxes, RemoteSandboxes)
    assert backend.description == f"at {running.url}"
    await backend.sandboxes.aclose()


async def test_an_unreachable_sandbox_server_does_not_prevent_the_start(tmp_path):
    backend = await open_backend(CodeInterpreterSettings(sandbox_url="http://127.0.0.1:9"), tmp_path, {})

    assert isinstance(backend.sandboxes, RemoteSandboxes)
    assert "does not answer yet" in backend.description
    await backend.sandboxes.aclose()


async def test_an_unreachable_kubernetes_api_does_not_prevent_the_start(tmp_path):
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "{clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}], users: [{name: u, user: {}}], "
        "contexts: [{name: x, context: {cluster: c, user: u, namespace: n}}], current-context: x}",
        encoding="utf-8",
    )
    settings = CodeInterpreterSettings(sandbox_template="python", kubeconfig=str(kubeconfig))
    backend = await open_backend(settings, tmp_path, {})

    assert isinstance(backend.sandboxes, KubernetesSandboxes)
    assert backend.description.startswith("in pods of the warm pool n/python, which cannot be claimed yet: ")
    await backend.sandboxes.aclose()


async def test_the_token_of_the_router_must_be_set(tmp_path):
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "{clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}], users: [{name: u, user: {}}], "
        "contexts: [{name: x, context: {cluster: c, user: u, namespace: n}}], current-context: x}",
        encoding="utf-8",
    )
    settings = CodeInterpreterSettings(
        sandbox_template="python",
        kubeconfig=str(kubeconfig),
        sandbox_router="http://127.0.0.1:9",
        sandbox_router_token_env="ROUTER",
    )
    with pytest.raises(ConfigError, match="sandbox_router_token_env: the variable ROUTER is not set"):
        await open_backend(settings, tmp_path, {})


def test_a_missing_extra_is_a_config_error_that_says_what_to_install(tmp_path):
    code = (
        "import sys, asyncio, pathlib; sys.modules['lightkube'] = None\n"
        "from antwort.config import CodeInterpreterSettings\n"
        "from antwort.containers.sandboxes.backends import open_backend\n"
        "asyncio.run(open_backend(CodeInterpreterSettings(sandbox_template='x'), pathlib.Path(), {}))"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert "sandbox_template: needs the extra `kubernetes` (no module 'lightkube')" in ended.stderr
    assert "pip install 'weakincentives[kubernetes]'" in ended.stderr


_SERVER = "{{clusters: [{{name: c, cluster: {{server: '{}'}}}}], contexts: [{{name: x, context: {{cluster: c}}}}]}}"


@pytest.mark.parametrize(
    "document",
    ["", "[]", "x", "{", "{clusters: 7}", _SERVER.format("http://[::1"), _SERVER.format("http://a b:x")],
)
async def test_a_kubeconfig_that_is_none_is_an_error(tmp_path, document):
    file = tmp_path / "kubeconfig"
    file.write_text(document.replace("}}]}", "}}], current-context: x}"), encoding="utf-8")
    settings = CodeInterpreterSettings(sandbox_template="python", kubeconfig=str(file))
    with pytest.raises(ConfigError, match="kubeconfig: no usable Kubernetes configuration"):
        await open_backend(settings, tmp_path, {})


@pytest.mark.parametrize(
    "settings, variables, message",
    [
        ({"sandbox_template": "x", "kubeconfig": "missing"}, {}, "kubeconfig: no usable Kubernetes configuration"),
        ({"sandbox_token_env": "KEY"}, {"KEY": "x"}, "sandbox_token_env: there is no `sandbox_url`"),
        ({"sandbox_url": "http://127.0.0.1:9", "sandbox_token_env": "KEY"}, {}, "the variable KEY is not set"),
        ({"sandbox_url": "http://127.0.0.1:9", "sandbox_token_env": "KEY"}, {"KEY": ""}, "the variable KEY is not set"),
    ],
)
async def test_an_impossible_configuration_is_an_error(tmp_path, settings, variables, message):
    with pytest.raises(ConfigError, match=message):
        await open_backend(CodeInterpreterSettings(**settings), tmp_path, variables)


async def test_a_wrong_token_is_a_config_error(tmp_path, running):
    settings = CodeInterpreterSettings(sandbox_url=running.url, sandbox_token_env="KEY")
    with pytest.raises(ConfigError, match="sandbox_token_env: The sandbox server rejects the token"):
        await open_backend(settings, tmp_path, {"KEY": "wrong"})
