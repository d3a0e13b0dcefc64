"""Single use: a server for one tenant refuses every second session and run, whatever became of the first."""

from __future__ import annotations

import pytest
from waiting import wait_until

from antwort.sandbox.server import SandboxSettings, make_app


@pytest.fixture
def running(serve):
    with serve("user", modules="json", single_tenant="true") as server:
        yield server


def _health(client) -> tuple[int, bool, bool]:
    health = client.call("GET", "/health").json
    return health["capacity"], health["single_tenant"], health["used"]


def _check_refused(client) -> None:
    for tenant in ("first", "second", ""):
        for path in ("/sessions", "/execute"):
            response = client.post(path, {"tenant": tenant, "code": "1"})
            assert (response.status, "single-use" in response.json["error"]) == (409, True)
    assert client.call("GET", "/health").json["sessions"] <= 1


def test_a_session_uses_the_server_and_goes_on(running):
    client = running.client
    assert client.post("/execute", {"code": ""}).status == 400
    assert _health(client) == (1, True, False)
    session = client.session(tenant="first")
    assert _health(client) == (1, True, True)
    _check_refused(client)
    assert client.run(session, "6 * 7")["result"] == "42"
    client.destroy(session)
    _check_refused(client)


def test_an_expired_session_does_not_free_the_server(running):
    running.client.session(tenant="first", expires_after_seconds=1)
    wait_until(lambda: running.client.call("GET", "/health").json["sessions"] == 0)
    _check_refused(running.client)


def test_a_dead_interpreter_does_not_free_the_server(running):
    session = running.client.session(tenant="first")
    assert running.client.run(session, "import os; os._exit(3)")["status"] == "ended"
    _check_refused(running.client)


def test_a_run_uses_the_server(running):
    assert running.client.post("/execute", {"code": "print(1)"}).json["stdout"] == "1\n"
    _check_refused(running.client)


@pytest.mark.anyio
async def test_the_server_answers_once_its_interpreter_has_imported_its_modules(tmp_path):
    """A pod of a warm pool is ready then, so that a claimed one runs code at once."""
    app = make_app(SandboxSettings(single_tenant=True, modules="json", state=tmp_path))
    async with app.router.lifespan_context(app):
        assert app.state.server.pool._warm_zygote.done()
