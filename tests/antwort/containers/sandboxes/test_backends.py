from __future__ import annotations

import os

import pytest
from fixtures_sandbox_server import sandbox_server

from antwort.config import CodeInterpreterSettings, ConfigError
from antwort.containers.sandboxes.backends import open_backend
from antwort.containers.sandboxes.local import LocalSandboxes
from antwort.containers.sandboxes.remote import RemoteSandboxes

pytestmark = pytest.mark.anyio

NO_JAIL = {**os.environ, "SANDBOX_MODE": "node"}


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with sandbox_server(tmp_path_factory.mktemp("sandbox")) as server:
        yield server


async def test_without_a_word_it_is_the_jail_of_this_machine(tmp_path):
    place = await open_backend(CodeInterpreterSettings(), tmp_path, os.environ)

    assert isinstance(place.sandboxes, LocalSandboxes)
    assert place.description == "in the jail of this machine"
    await place.sandboxes.aclose()


async def test_without_a_jail_it_is_off_and_says_why_and_how_to_turn_it_on(tmp_path):
    place = await open_backend(CodeInterpreterSettings(), tmp_path, NO_JAIL)

    assert place.sandboxes is None
    for words in ("off: SANDBOX_MODE=node", "antwort doctor", "sandbox_url", "extra `sandbox`"):
        assert words in place.description


async def test_without_a_jail_whoever_insists_is_told_at_once(tmp_path):
    with pytest.raises(
        ConfigError, match=r"code_interpreter\.enabled: no code can be run on this machine: SANDBOX_MODE"
    ):
        await open_backend(CodeInterpreterSettings(enabled=True), tmp_path, NO_JAIL)


async def test_it_can_be_off(tmp_path):
    place = await open_backend(CodeInterpreterSettings(enabled=False), tmp_path, NO_JAIL)

    assert (place.sandboxes, place.description) == (None, "off, as the configuration says")


async def test_a_server_elsewhere(tmp_path, running):
    settings = CodeInterpreterSettings(sandbox_url=running.url, sandbox_token_env="KEY")
    place = await open_backend(settings, tmp_path, {"KEY": running.token})

    assert isinstance(place.sandboxes, RemoteSandboxes)
    assert place.description == f"at {running.url}"
    await place.sandboxes.aclose()


async def test_a_server_that_does_not_answer_yet_is_no_reason_not_to_start(tmp_path):
    place = await open_backend(CodeInterpreterSettings(sandbox_url="http://127.0.0.1:9"), tmp_path, {})

    assert isinstance(place.sandboxes, RemoteSandboxes)
    assert "does not answer yet" in place.description
    await place.sandboxes.aclose()


@pytest.mark.parametrize(
    "settings, variables, says",
    [
        ({"sandbox_token_env": "KEY"}, {"KEY": "x"}, "sandbox_token_env: there is no `sandbox_url`"),
        ({"sandbox_url": "http://127.0.0.1:9", "sandbox_token_env": "KEY"}, {}, "the variable KEY is not set"),
        ({"sandbox_url": "http://127.0.0.1:9", "sandbox_token_env": "KEY"}, {"KEY": ""}, "the variable KEY is not set"),
    ],
)
async def test_what_cannot_be_is_an_error_at_start(tmp_path, settings, variables, says):
    with pytest.raises(ConfigError, match=says):
        await open_backend(CodeInterpreterSettings(**settings), tmp_path, variables)


async def test_a_wrong_token_is_an_error_at_start(tmp_path, running):
    settings = CodeInterpreterSettings(sandbox_url=running.url, sandbox_token_env="KEY")
    with pytest.raises(ConfigError, match="sandbox_token_env: The sandbox server rejects the token"):
        await open_backend(settings, tmp_path, {"KEY": "wrong"})
