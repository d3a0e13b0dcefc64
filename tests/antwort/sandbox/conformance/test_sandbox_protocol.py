"""The sandbox server passes the conformance suite, as an ordinary user and as root; faulty servers fail it."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from antwort.testing import sandbox_protocol as conformance
from antwort.testing.sandbox_protocol import Client


@pytest.mark.parametrize("check", conformance.BASE + conformance.SESSIONS, ids=lambda check: check.__name__)
def test_the_server_conforms(server, check):
    check(server.client)


def test_with_a_slow_index_installation_and_execution_share_one_timeout(serve, package_index):
    package_index.add("slow-thing", {"slow_thing.py": ""})
    with serve("user", python_index=package_index.blocked_url, modules="json") as running:
        slow = threading.Timer(2.5, package_index.unblock.set)
        slow.start()
        conformance.installation_and_execution_share_one_timeout(Client(running.client.url, slow_package="slow-thing"))
        slow.join()


@contextlib.contextmanager
def fake_server(respond: Callable[[dict], tuple[int, dict]]) -> Iterator[str]:
    """A server with this response to `/execute`, which does not read large bodies."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            status, body = respond(json.loads(self.rfile.read(length)) if length < 1 << 20 else {})
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def result(**fields: object) -> tuple[int, dict]:
    return 200, {"status": "success", "stdout": "1\n", "stderr": "", "exit_code": 0, "execution_time_ms": 0, **fields}


def test_a_server_with_separate_timeouts_fails():
    def respond(request: dict) -> tuple[int, dict]:
        time.sleep(2)  # the installation
        time.sleep(request["timeout_seconds"])
        return result(status="error", exit_code=-1)

    with fake_server(respond) as url, pytest.raises(AssertionError, match="each got the whole timeout"):
        conformance.installation_and_execution_share_one_timeout(Client(url))


def test_a_server_without_a_body_limit_fails_and_one_that_closes_early_passes():
    with fake_server(lambda _: result()) as url, pytest.raises(AssertionError):
        conformance.a_body_over_the_limit_is_413(Client(url, body_limit=1000))
    with fake_server(lambda request: result() if request else (413, {"error": "too large"})) as url:
        conformance.a_body_over_the_limit_is_413(Client(url))


def with_environment(*seen: str) -> contextlib.AbstractContextManager[str]:
    """A server whose code sees these variables."""
    return fake_server(lambda _: result(stdout=json.dumps(seen)))


def test_a_server_that_reveals_secret_variables_fails(monkeypatch, capsys):
    monkeypatch.setattr(conformance, "BASE", (conformance.the_environment_of_the_server_is_not_visible,))
    monkeypatch.setenv("BILLING_KEY", "hunter-4711")
    named = ["--base", "--secret-variable", "DB_PASSWORD", "--secret-variable", "BILLING_KEY"]
    for seen, names in (
        (["DB_PASSWORD="], "['DB_PASSWORD']"),
        (["OTHER=key:hunter-4711"], "['BILLING_KEY, as OTHER']"),
        (["SANDBOX_PORT=1"], "['SANDBOX_PORT']"),
    ):
        with with_environment("PATH=/bin", *seen) as url:
            assert conformance.main([*named, url]) == 1
        printed = capsys.readouterr().out
        assert printed == f"FAILED the_environment_of_the_server_is_not_visible: {names}\n"
    with with_environment("PATH=/bin", "DB_PASSWORD=x") as url:
        assert conformance.main([*named, url]) == 1
        assert conformance.main(["--base", url]) == 0  # not declared as a secret


def test_the_sandbox_server_reveals_no_variables(server, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_SERVER", server.secret)
    client = Client(server.client.url, secret_variables=("SECRET_OF_THE_SERVER",))
    conformance.the_environment_of_the_server_is_not_visible(client)


def test_main_prints_failures_and_help(capsys):
    assert conformance.main(["--base", "http://127.0.0.1:9"]) == 1
    assert "FAILED health" in capsys.readouterr().out
    for arguments, code in (([], 2), (["--help"], 0)):
        with pytest.raises(SystemExit) as exit_:
            conformance.main(arguments)
        assert exit_.value.code == code
    printed = capsys.readouterr()
    assert "URL" in printed.err
    assert all(
        option in printed.out
        for option in ("--base", "--token", "SANDBOX_TOKEN", "--slow-package", "--body-limit", "--secret-variable")
    )


def test_the_token_comes_from_the_command_line_or_the_environment(serve, monkeypatch, capsys):
    only = (conformance.execute_returns_output_and_exit_code,)
    monkeypatch.setattr(conformance, "BASE", only)
    with serve("user", token="right", modules="json") as running:
        url = running.client.url
        assert conformance.main(["--base", url]) == 1
        assert conformance.main(["--base", "--token", "right", url]) == 0
        monkeypatch.setenv("SANDBOX_TOKEN", "right")
        assert conformance.main(["--base", url]) == 0
    assert "status=401" in capsys.readouterr().out
