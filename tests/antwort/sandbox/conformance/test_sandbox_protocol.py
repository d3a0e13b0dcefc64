"""Our own server passes the suite that it ships, as an ordinary user and as root; and servers that break it do not."""

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


def test_with_a_slow_index_installation_and_run_share_one_timeout(serve, package_index):
    package_index.add("slow-thing", {"slow_thing.py": ""})
    with serve("user", python_index=package_index.held, modules="json") as running:
        slow = threading.Timer(2.5, package_index.going_on.set)
        slow.start()
        conformance.installation_and_run_share_one_timeout(Client(running.client.url, slow_package="slow-thing"))
        slow.join()


@contextlib.contextmanager
def server_that(answer: Callable[[dict], tuple[int, dict]]) -> Iterator[str]:
    """A server whose `/execute` answers this, and which reads no more of a body than it must."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            status, body = answer(json.loads(self.rfile.read(length)) if length < 1 << 20 else {})
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class calls it so
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def result(**fields: object) -> tuple[int, dict]:
    return 200, {"status": "success", "stdout": "1\n", "stderr": "", "exit_code": 0, "execution_time_ms": 0, **fields}


def test_a_server_that_gives_each_its_own_timeout_is_found_out():
    def answer(request: dict) -> tuple[int, dict]:
        time.sleep(2)  # the installation
        time.sleep(request["timeout_seconds"])
        return result(status="error", exit_code=-1)

    with server_that(answer) as url, pytest.raises(AssertionError, match="each given all of the time"):
        conformance.installation_and_run_share_one_timeout(Client(url))


def test_a_server_without_a_limit_on_bodies_is_found_out_and_one_that_hangs_up_is_not():
    with server_that(lambda _: result()) as url, pytest.raises(AssertionError):
        conformance.a_body_over_the_limit_is_413(Client(url, body_limit=1000))
    with server_that(lambda request: result() if request else (413, {"error": "too large"})) as url:
        conformance.a_body_over_the_limit_is_413(Client(url))


def with_environment(*seen: str) -> contextlib.AbstractContextManager[str]:
    """A server whose code sees these."""
    return server_that(lambda _: result(stdout=json.dumps(seen)))


def test_a_server_that_shows_what_the_operator_calls_secret_is_found_out(monkeypatch, capsys):
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
        said = capsys.readouterr().out
        assert said == f"FAILED the_environment_of_the_server_is_not_visible: {names}\n"
    with with_environment("PATH=/bin", "DB_PASSWORD=x") as url:
        assert conformance.main([*named, url]) == 1
        assert conformance.main(["--base", url]) == 0  # nobody said that it is one


def test_our_server_shows_none_of_its_variables(server, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_SERVER", server.secret)
    client = Client(server.client.url, secret_variables=("SECRET_OF_THE_SERVER",))
    conformance.the_environment_of_the_server_is_not_visible(client)


def test_the_suite_says_what_fails_and_how_to_run_it(capsys):
    assert conformance.main(["--base", "http://127.0.0.1:9"]) == 1
    assert "FAILED health" in capsys.readouterr().out
    for arguments, code in (([], 2), (["--help"], 0)):
        with pytest.raises(SystemExit) as leaving:
            conformance.main(arguments)
        assert leaving.value.code == code
    said = capsys.readouterr()
    assert "URL" in said.err
    assert all(
        option in said.out
        for option in ("--base", "--token", "SANDBOX_TOKEN", "--slow-package", "--body-limit", "--secret-variable")
    )


def test_the_suite_takes_a_token_from_the_command_line_or_the_environment(serve, monkeypatch, capsys):
    only = (conformance.a_run_answers_its_output_and_exit_code,)
    monkeypatch.setattr(conformance, "BASE", only)
    with serve("user", token="right", modules="json") as running:
        url = running.client.url
        assert conformance.main(["--base", url]) == 1
        assert conformance.main(["--base", "--token", "right", url]) == 0
        monkeypatch.setenv("SANDBOX_TOKEN", "right")
        assert conformance.main(["--base", url]) == 0
    assert "status=401" in capsys.readouterr().out
