"""Conformance suite for sandbox servers over HTTP: `python -m antwort.testing.sandbox_protocol URL`.

Standard library only, HTTP only, and one file, so that it can be copied to any machine. Each check is a function whose
name states the required behaviour; it returns, or raises `AssertionError` with the response. Checks of the base
protocol come first, then those of sessions, which other servers may lack.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import io
import json
import os
import secrets
import sys
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

_TIMEOUT_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A response of the server."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Client:
    """HTTP client of the server under test."""

    url: str
    token: str | None = None
    slow_package: str | None = None
    """A package that takes long to install, if there is one."""
    body_limit: int = 64 << 20
    """The server's limit on request bodies."""
    secret_variables: tuple[str, ...] = ()
    """Names of variables in the server's environment that no code may see."""

    def call(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> HttpReply:
        request = urllib.request.Request(f"{self.url}{path}", data=body, method=method, headers=headers or {})  # noqa: S310 - the caller's URL
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response:  # noqa: S310 - the caller's URL
                return HttpReply(response.status, {k.lower(): v for k, v in response.headers.items()}, response.read())
        except urllib.error.HTTPError as error:
            with error:
                return HttpReply(error.code, {k.lower(): v for k, v in error.headers.items()}, error.read())

    def call_too_large(self, path: str, body: bytes) -> HttpReply:
        """Send a body that the server may refuse before reading all of it; errors while sending are ignored."""
        address = urllib.parse.urlsplit(self.url)
        kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
        connection = kind(address.netloc, timeout=_TIMEOUT_SECONDS)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                authorization = {"Authorization": f"Bearer {self.token}"} if self.token else {}
                connection.request("POST", f"{address.path}{path}", body, headers | authorization)
            response = connection.getresponse()
            return HttpReply(response.status, {k.lower(): v for k, v in response.headers.items()}, response.read())
        finally:
            connection.close()

    def post(self, path: str, value: Any) -> HttpReply:
        return self.call("POST", path, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def execute(self, code: str, **fields: Any) -> Any:
        response = self.post("/execute", {"code": code, **fields})
        assert response.status == 200, response
        return response.json

    def session(self, **fields: Any) -> str:
        response = self.post("/sessions", fields)
        assert response.status == 201, response
        return response.json["id"]

    def run(self, session: str, code: str, **fields: Any) -> Any:
        response = self.post(f"/sessions/{session}/execute", {"code": code, **fields})
        assert response.status == 200, response
        return response.json

    def command(self, session: str, command: str, **fields: Any) -> Any:
        """Run a shell command in a session; the report."""
        response = self.post(f"/sessions/{session}/command", {"command": command, **fields})
        assert response.status == 200, response
        return response.json

    def destroy(self, session: str) -> None:
        self.call("DELETE", f"/sessions/{session}")


# ── The base protocol ────────────────────────────────────────────────────────────────────────────────────────────────


def health_has_the_required_fields(client: Client) -> None:
    response = client.call("GET", "/health")
    assert response.status == 200, response
    required = {"status", "mode", "runtime_version", "capacity", "current_load", "uptime_seconds"}
    assert required <= set(response.json), response.json


def execute_returns_output_and_exit_code(client: Client) -> None:
    report = client.execute("import sys; print('out'); print('err', file=sys.stderr)")
    assert (report["status"], report["exit_code"]) == ("success", 0), report
    assert (report["stdout"], report["stderr"]) == ("out\n", "err\n"), report
    assert isinstance(report["execution_time_ms"], int), report
    assert "files_produced" not in report, report


def failing_code_is_a_result_not_an_http_error(client: Client) -> None:
    report = client.execute("raise ValueError('here')")
    assert (report["status"], report["exit_code"]) == ("error", 1), report
    assert "ValueError: here" in report["stderr"], report
    assert client.execute("import sys; sys.exit(7)")["exit_code"] == 7
    assert client.execute("import os; os._exit(9)")["exit_code"] == 9


def files_are_uploaded_and_produced(client: Client) -> None:
    code = (
        "import os, pathlib\nout = pathlib.Path(os.environ['OUTPUT_DIR'])\n"
        "(out / 'sub').mkdir()\n(out / 'sub' / 'b.bin').write_bytes(open('in/a.bin', 'rb').read() * 2)"
    )
    report = client.execute(code, files={"in/a.bin": base64.b64encode(b"\0\xff").decode()})
    assert {k: base64.b64decode(v) for k, v in report["files_produced"].items()} == {"sub/b.bin": b"\0\xff" * 2}, report


def bad_requests_are_400(client: Client) -> None:
    bodies = [b"{", b"[]", b"{}", b'{"code": ""}', b'{"code": 1}', b'{"code": "1", "files": {"a": "%%%"}}']
    for body in [*bodies, b"[" * 100_000]:
        response = client.call("POST", "/execute", body)
        assert response.status == 400, (body[:40], response)
        assert isinstance(response.json["error"], str), response


def a_body_over_the_limit_is_413(client: Client) -> None:
    body = b'{"code": "print(1)", "files": {"x": "' + b"A" * client.body_limit + b'"}}'
    response = client.call_too_large("/execute", body)
    assert response.status == 413, response
    assert isinstance(response.json["error"], str), response
    assert client.execute("print(1)")["stdout"] == "1\n"


def a_timeout_of_zero_or_less_means_the_default(client: Client) -> None:
    assert client.execute("print(1)", timeout_seconds=0)["stdout"] == "1\n"
    assert client.execute("print(1)", timeout_seconds=-5)["stdout"] == "1\n"


def output_before_a_timeout_is_kept(client: Client) -> None:
    started = time.monotonic()
    report = client.execute("print('before', flush=True)\nwhile True: pass", timeout_seconds=1)
    assert time.monotonic() - started < 2.5, "ended more than a second after the timeout"
    assert (report["status"], report["exit_code"]) == ("error", -1), report
    assert report["stdout"] == "before\n", report


def a_timeout_cannot_be_ignored(client: Client) -> None:
    code = (
        "import signal, time\nfor n in (signal.SIGTERM, signal.SIGINT): signal.signal(n, signal.SIG_IGN)\n"
        "while True:\n    try: time.sleep(60)\n    except BaseException: pass"
    )
    started = time.monotonic()
    assert client.execute(code, timeout_seconds=1)["exit_code"] == -1
    assert time.monotonic() - started < 3, "ended more than a second after the timeout"


def a_grandchild_with_the_pipe_open_does_not_delay_the_response(client: Client) -> None:
    code = "import subprocess\nsubprocess.Popen(['sleep', '6'])\nprint('done', flush=True)\nimport time; time.sleep(60)"
    started = time.monotonic()
    report = client.execute(code, timeout_seconds=2)
    assert time.monotonic() - started < 3.5, "the response waited for the grandchild"
    assert report["exit_code"] == -1, report


def a_symlink_in_the_output_directory_is_not_followed(client: Client) -> None:
    code = "import os\nos.chdir(os.environ['OUTPUT_DIR'])\nos.symlink('/etc/passwd', 'a'); os.symlink('/etc', 'b')"
    assert "files_produced" not in client.execute(code)


_ENVIRONMENTS: Final = """
import glob, json, os
variables = {f'{name}={value}' for name, value in os.environ.items()}
for path in glob.glob('/proc/[0-9]*/environ'):
    try:
        with open(path, errors='replace') as file: variables.update(file.read().split(chr(0)))
    except OSError: pass
print(json.dumps(sorted(variables)))
"""


def the_environment_of_the_server_is_not_visible(client: Client) -> None:
    """Neither the names of secrets, nor their values under any name, if they are set in this environment."""
    variables = [entry.partition("=")[::2] for entry in json.loads(client.execute(_ENVIRONMENTS)["stdout"])]
    secret = {"HOSTNAME", "USER", *client.secret_variables}
    prefixes = ("SANDBOX_", "KUBERNETES", "AWS", "OPENAI")
    leaked = {name for name, _ in variables if name in secret or name.startswith(prefixes)}
    own = {name: os.environ[name] for name in client.secret_variables if os.environ.get(name)}
    for name, value in own.items():
        leaked |= {f"{name}, as {other}" for other, shown in variables if value in shown}
    assert not leaked, sorted(leaked)  # names only, not values


def options_urls_and_paths_are_refused_as_requirements(client: Client) -> None:
    urls = ("--index-url=http://127.0.0.1:9/", "git+ssh://git@host/x", "x @ http://h/x.whl")
    for line in (*urls, "./x", "/x/y", "-r x", "a\nb"):
        response = client.post("/execute", {"code": "print(1)", "requirements": [line]})
        refused = response.status == 400 or (response.status == 200 and response.json["exit_code"] == -1)
        assert refused, (line, response)


def a_failed_installation_is_an_error_result(client: Client) -> None:
    report = client.execute("print(1)", requirements=["surely-no-such-package-4711==0.0.1"], timeout_seconds=20)
    assert (report["status"], report["exit_code"], report["stdout"]) == ("error", -1, ""), report
    assert report["stderr"].startswith("package installation failed: "), report


def installation_and_execution_share_one_timeout(client: Client) -> None:
    """Only a slow package proves it; with any other this checks that an installation ends in time."""
    package = client.slow_package or f"surely-no-such-package-{secrets.token_hex(8)}"
    started = time.monotonic()
    report = client.execute("import time; time.sleep(60)", requirements=[package], timeout_seconds=4)
    assert time.monotonic() - started < 5.5, "installation and execution each got the whole timeout"
    assert (report["status"], report["exit_code"]) == ("error", -1), report


def a_flood_of_output_is_truncated_to_head_and_tail(client: Client) -> None:
    flood = "for _ in range(676): os.write(1, b'x' * (1 << 20))"
    code = f"import os\nos.write(1, b'first\\n')\n{flood}\nos.write(1, b'\\nlast\\n')"
    report = client.execute(code, timeout_seconds=60)
    assert report["status"] == "success", report["stderr"]
    assert len(report["stdout"]) < 20 << 20, len(report["stdout"])
    assert report["stdout"].startswith("first\n"), report["stdout"][:20]
    assert report["stdout"].endswith("\nlast\n"), report["stdout"][-20:]


def names_cannot_leave_the_working_directory(client: Client) -> None:
    for name in ("../x", "../../etc/passwd", "/etc/x", "a/../../x", "..", "a\\..\\b", "a\0b", "x" * 300):
        response = client.post("/execute", {"code": "print(1)", "files": {name: "aGk="}})
        assert response.status == 400, (name, response)


def code_does_not_run_as_root(client: Client) -> None:
    assert client.execute("import os; print(os.getuid() != 0, os.geteuid() != 0)")["stdout"] == "True True\n"


def no_files_are_left_for_the_next_execution(client: Client) -> None:
    client.execute("open('left', 'w').write('x'); open('/tmp/left', 'w').write('x')")
    code = "import os; print(os.path.exists('left'), os.path.exists('/tmp/left'))"
    assert client.execute(code)["stdout"] == "False False\n"


def over_capacity_is_429(client: Client) -> None:
    capacity = client.call("GET", "/health").json["capacity"]
    assert capacity >= 3, capacity
    sleep = {"code": "import time; time.sleep(2)"}
    with ThreadPoolExecutor(capacity + 2) as threads:
        running = [threads.submit(client.post, "/execute", sleep) for _ in range(capacity + 2)]
    responses = [post.result() for post in running]
    refused = [response for response in responses if response.status == 429]
    assert len(refused) == 2, [response.status for response in responses]
    assert all(int(response.headers["retry-after"]) >= 1 for response in refused), refused
    assert all("at capacity" in response.json["error"] for response in refused), refused


# ── Sessions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def variables_persist_and_the_last_expression_is_the_result(client: Client) -> None:
    session = client.session()
    client.run(session, "x = 20")
    assert client.run(session, "x + 1")["result"] == "21"
    assert client.run(session, "x + 1;")["result"] is None
    assert client.run(session, "import asyncio; await asyncio.sleep(0, 'slept')")["result"] == "'slept'"
    client.destroy(session)


def tracebacks_show_only_the_users_frames(client: Client) -> None:
    session = client.session()
    report = client.run(session, "def f():\n    return 1 / 0\nf()")
    assert report["error"] == {"name": "ZeroDivisionError", "message": "division by zero"}, report
    assert [line for line in report["stderr"].splitlines() if "File" in line and "<cell" not in line] == [], report
    assert "return 1 / 0" in report["stderr"], report
    assert client.run(session, "input('name? ')")["error"]["name"] == "EOFError"
    client.destroy(session)


def figures_become_images(client: Client) -> None:
    session = client.session()
    report = client.run(session, "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nplt.plot([3])\nNone")
    assert [image["mime"] for image in report["images"]] == ["image/png"] * 2, report["stderr"]
    assert base64.b64decode(report["images"][0]["data"]).startswith(b"\x89PNG"), report
    assert client.run(session, "1")["images"] == []
    client.destroy(session)


def a_timeout_keeps_the_state_of_the_session(client: Client) -> None:
    session = client.session()
    client.run(session, "x = 5")
    report = client.run(session, "import time; print('a'); time.sleep(60)", timeout_seconds=1)
    assert (report["status"], report["stdout"]) == ("timeout", "a\n"), report
    assert client.run(session, "x")["result"] == "5"
    client.destroy(session)


def output_is_streamed_in_order(client: Client) -> None:
    session = client.session()
    code = "import sys\nfor i in range(3): print(i); print(i, file=sys.stderr)"
    body = json.dumps({"code": code, "stream": True}).encode()
    response = client.call("POST", f"/sessions/{session}/execute", body)
    assert response.headers["content-type"].startswith("text/event-stream"), response
    events = [frame.split("\n", 1) for frame in response.body.decode().strip().split("\n\n")]
    last = json.loads(events[-1][1].removeprefix("data: "))
    assert events[-1][0] == "event: result", events
    output = "".join(part["stream"][3] + part["text"] for part in last["output"])
    assert output == "o0\ne0\no1\ne1\no2\ne2\n", last
    client.destroy(session)


def interrupt_stops_the_call_and_keeps_the_session(client: Client) -> None:
    session = client.session()
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(client.run, session, "y = 1\nwhile True: pass")
        time.sleep(0.5)
        assert client.post(f"/sessions/{session}/interrupt", {}).json == {"interrupted": True}
        report = running.result(10)
    assert report["status"] == "interrupted", report
    assert client.run(session, "y")["result"] == "1"
    client.destroy(session)


def commands_have_exit_codes_and_separate_streams(client: Client) -> None:
    session = client.session()
    report = client.command(session, "echo out; echo err >&2; pwd > where; exit 3")
    assert (report["status"], report["exit_code"]) == ("exit", 3), report
    assert (report["stdout"], report["stderr"]) == ("out\n", "err\n"), report
    assert client.run(session, "open('where').read()")["result"] == repr("/mnt/data\n")
    for bad in ({}, {"command": " "}, {"command": "a\0b"}, {"command": 1}, {"command": "x", "timeout_ms": "1"}):
        assert client.post(f"/sessions/{session}/command", bad).status == 400, bad
    client.destroy(session)


def a_command_past_its_timeout_is_killed_with_its_descendants(client: Client) -> None:
    session = client.session()
    client.run(session, "x = 5")
    command = "echo a; setsid sh -c 'sleep 2; touch late' & sleep 60"
    report = client.command(session, command, timeout_ms=500)
    assert (report["status"], report["stdout"]) == ("timeout", "a\n"), report
    assert report["execution_time_ms"] < 2000, report
    time.sleep(2)
    assert client.run(session, "import os; x, os.path.exists('late')")["result"] == "(5, False)"
    client.destroy(session)


def files_of_a_session_can_be_written_read_moved_and_deleted(client: Client) -> None:
    session = client.session(files={"a.txt": base64.b64encode(b"a").decode()})
    base = f"/sessions/{session}"
    assert client.call("PUT", f"{base}/files/d/b.txt", b"bb").status == 201
    assert client.run(session, "open('d/b.txt').read()")["result"] == "'bb'"
    assert client.post(f"{base}/move", {"from": "d/b.txt", "to": "e/c.txt"}).status == 200
    response = client.call("GET", f"{base}/files/e/c.txt")
    assert (response.body, response.headers["x-content-type-options"]) == (b"bb", "nosniff"), response
    assert response.headers["content-disposition"].startswith("attachment"), response
    listed = client.call("GET", f"{base}/files").json["files"]
    kinds = {"a.txt": "file", "d": "directory", "e": "directory", "e/c.txt": "file"}
    assert {f["path"]: f["kind"] for f in listed} == kinds, listed
    assert client.call("GET", f"{base}/stat/e/c.txt").json["size"] == 2
    assert client.call("DELETE", f"{base}/files/e").status == 204
    assert client.call("GET", f"{base}/files/e/c.txt").status == 404
    client.destroy(session)
    assert client.call("GET", base).status in {404, 410}


def a_directory_is_transferred_as_one_tar(client: Client) -> None:
    session = client.session()
    sent = io.BytesIO()
    with tarfile.open(fileobj=sent, mode="w") as archive:
        for i in range(50):
            member = tarfile.TarInfo(f"t/{i}.txt")
            member.size = i
            archive.addfile(member, io.BytesIO(b"x" * i))
    assert client.call("PUT", f"/sessions/{session}/archive", sent.getvalue()).json == {"members": 50}
    code = "import os; sum(os.path.getsize(f't/{n}') for n in os.listdir('t'))"
    assert client.run(session, code)["result"] == str(sum(range(50)))
    back = client.call("GET", f"/sessions/{session}/archive?path=t")
    with tarfile.open(fileobj=io.BytesIO(back.body)) as archive:
        assert {m.name: m.size for m in archive} == {f"{i}.txt": i for i in range(50)}
    client.destroy(session)


def a_tar_with_links_devices_or_paths_outside_is_400(client: Client) -> None:
    session = client.session()
    kinds = [(kind, "x") for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE)]
    for kind, name in [*kinds, (tarfile.REGTYPE, "../x"), (tarfile.REGTYPE, "/x")]:
        sent = io.BytesIO()
        with tarfile.open(fileobj=sent, mode="w") as archive:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
        assert client.call("PUT", f"/sessions/{session}/archive", sent.getvalue()).status == 400, name
    assert client.call("GET", f"/sessions/{session}/files").json["files"] == []
    client.destroy(session)


def an_unknown_session_is_404(client: Client) -> None:
    assert client.post("/sessions/sess_0123/execute", {"code": "1"}).status == 404


BASE: Final[tuple[Callable[[Client], None], ...]] = (
    health_has_the_required_fields,
    execute_returns_output_and_exit_code,
    failing_code_is_a_result_not_an_http_error,
    files_are_uploaded_and_produced,
    bad_requests_are_400,
    a_body_over_the_limit_is_413,
    a_timeout_of_zero_or_less_means_the_default,
    output_before_a_timeout_is_kept,
    a_timeout_cannot_be_ignored,
    a_grandchild_with_the_pipe_open_does_not_delay_the_response,
    a_symlink_in_the_output_directory_is_not_followed,
    the_environment_of_the_server_is_not_visible,
    options_urls_and_paths_are_refused_as_requirements,
    a_failed_installation_is_an_error_result,
    installation_and_execution_share_one_timeout,
    a_flood_of_output_is_truncated_to_head_and_tail,
    names_cannot_leave_the_working_directory,
    code_does_not_run_as_root,
    no_files_are_left_for_the_next_execution,
    over_capacity_is_429,
)

SESSIONS: Final[tuple[Callable[[Client], None], ...]] = (
    variables_persist_and_the_last_expression_is_the_result,
    tracebacks_show_only_the_users_frames,
    figures_become_images,
    a_timeout_keeps_the_state_of_the_session,
    output_is_streamed_in_order,
    interrupt_stops_the_call_and_keeps_the_session,
    commands_have_exit_codes_and_separate_streams,
    a_command_past_its_timeout_is_killed_with_its_descendants,
    files_of_a_session_can_be_written_read_moved_and_deleted,
    a_directory_is_transferred_as_one_tar,
    a_tar_with_links_devices_or_paths_outside_is_400,
    an_unknown_session_is_404,
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m antwort.testing.sandbox_protocol",
        description="Check a server against the sandbox protocol. Exits with 1 if a check fails.",
    )
    parser.add_argument("url", metavar="URL", help="the server's URL, such as http://127.0.0.1:8080")
    parser.add_argument("--base", action="store_true", help="skip the checks of sessions, which other servers may lack")
    parser.add_argument(
        "--token",
        default=os.environ.get("SANDBOX_TOKEN"),
        help="sent as `Authorization: Bearer …`; use SANDBOX_TOKEN to keep it out of the process list  [default: none]",
    )
    parser.add_argument(
        "--slow-package",
        metavar="NAME",
        help="a package that takes two seconds or more to install and is not installed yet; without one, "
        "the shared timeout of installation and execution is not tested  [default: none]",
    )
    parser.add_argument(
        "--body-limit",
        type=int,
        default=64 << 20,
        metavar="BYTES",
        help="the server's limit on request bodies  [default: %(default)s]",
    )
    parser.add_argument(
        "--secret-variable",
        action="append",
        default=[],
        metavar="NAME",
        help="a variable in the server's environment that no code may see; may be repeated. If it is set in this "
        "environment, its value is searched under every name; it is neither sent nor printed  [default: none]",
    )
    return parser


def main(arguments: list[str]) -> int:
    """Run every check and print the results."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if not __debug__:
        parser.error("under -O assertions are gone and every check would pass")
    client = Client(
        options.url.rstrip("/"), options.token, options.slow_package, options.body_limit, tuple(options.secret_variable)
    )
    failed = 0
    for check in BASE if options.base else BASE + SESSIONS:
        try:
            check(client)
        except (AssertionError, OSError, ValueError, KeyError, http.client.HTTPException) as error:
            failed += 1
            sys.stdout.write(f"FAILED {check.__name__}: {str(error)[:500]}\n")
        else:
            sys.stdout.write(f"ok     {check.__name__}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
