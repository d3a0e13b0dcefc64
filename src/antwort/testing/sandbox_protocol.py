"""Conformance suite for sandbox servers over HTTP: `python -m antwort.testing.sandbox_protocol URL`.

Standard library only, over HTTP only, and one file, so that it can be copied to wherever such a server is. Each check
is a function whose name is the promise it tests; it returns, or raises `AssertionError` with what was seen. Checks of
the base protocol come first, those of sessions (which other servers may lack) after.
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
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

_TIMEOUT_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class Response:
    """What the server said."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Client:
    """A server to be tested."""

    url: str
    token: str | None = None
    slow_package: str | None = None
    """A package that its index is slow to hand out, if there is one."""
    body_limit: int = 64 << 20
    """Bytes of the largest body it takes."""
    secret_variables: tuple[str, ...] = ()
    """Names of variables that it has in its environment and that no code may see."""

    def call(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Response:
        request = urllib.request.Request(f"{self.url}{path}", data=body, method=method, headers=headers or {})  # noqa: S310 - the caller's URL
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310 - the caller's URL
                return Response(answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Response(error.code, {k.lower(): v for k, v in error.headers.items()}, error.read())

    def call_too_large(self, path: str, body: bytes) -> Response:
        """Send a body that may be refused before it is read to its end: the answer counts, not the sending."""
        address = urllib.parse.urlsplit(self.url)
        kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
        connection = kind(address.netloc, timeout=_TIMEOUT_SECONDS)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                authorization = {"Authorization": f"Bearer {self.token}"} if self.token else {}
                connection.request("POST", f"{address.path}{path}", body, headers | authorization)
            answer = connection.getresponse()
            return Response(answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read())
        finally:
            connection.close()

    def post(self, path: str, value: Any) -> Response:
        return self.call("POST", path, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def execute(self, code: str, **fields: Any) -> Any:
        answer = self.post("/execute", {"code": code, **fields})
        assert answer.status == 200, answer
        return answer.json

    def session(self, **fields: Any) -> str:
        answer = self.post("/sessions", fields)
        assert answer.status == 201, answer
        return answer.json["id"]

    def run(self, session: str, code: str, **fields: Any) -> Any:
        answer = self.post(f"/sessions/{session}/execute", {"code": code, **fields})
        assert answer.status == 200, answer
        return answer.json

    def destroy(self, session: str) -> None:
        self.call("DELETE", f"/sessions/{session}")


# ── The base protocol ────────────────────────────────────────────────────────────────────────────────────────────────


def health_says_what_a_probe_needs(client: Client) -> None:
    answer = client.call("GET", "/health")
    assert answer.status == 200, answer
    wanted = {"status", "mode", "runtime_version", "capacity", "current_load", "uptime_seconds"}
    assert wanted <= set(answer.json), answer.json


def a_run_answers_its_output_and_exit_code(client: Client) -> None:
    seen = client.execute("import sys; print('out'); print('err', file=sys.stderr)")
    assert (seen["status"], seen["exit_code"]) == ("success", 0), seen
    assert (seen["stdout"], seen["stderr"]) == ("out\n", "err\n"), seen
    assert isinstance(seen["execution_time_ms"], int), seen
    assert "files_produced" not in seen, seen


def failing_code_is_a_result_not_an_error(client: Client) -> None:
    seen = client.execute("raise ValueError('here')")
    assert (seen["status"], seen["exit_code"]) == ("error", 1), seen
    assert "ValueError: here" in seen["stderr"], seen
    assert client.execute("import sys; sys.exit(7)")["exit_code"] == 7
    assert client.execute("import os; os._exit(9)")["exit_code"] == 9


def files_go_in_and_come_out(client: Client) -> None:
    code = (
        "import os, pathlib\nout = pathlib.Path(os.environ['OUTPUT_DIR'])\n"
        "(out / 'sub').mkdir()\n(out / 'sub' / 'b.bin').write_bytes(open('in/a.bin', 'rb').read() * 2)"
    )
    seen = client.execute(code, files={"in/a.bin": base64.b64encode(b"\0\xff").decode()})
    assert {k: base64.b64decode(v) for k, v in seen["files_produced"].items()} == {"sub/b.bin": b"\0\xff" * 2}, seen


def bad_requests_are_refused(client: Client) -> None:
    bodies = [
        b"{",
        b"[]",
        b'{"code": ""}',
        b"{}",
        b'{"code": 1}',
        b'{"code": "1", "files": {"a": "%%%"}}',
        b"[" * 100_000,
    ]
    for body in bodies:
        answer = client.call("POST", "/execute", body)
        assert answer.status == 400, (body[:40], answer)
        assert isinstance(answer.json["error"], str), answer


def a_body_over_the_limit_is_413(client: Client) -> None:
    body = b'{"code": "print(1)", "files": {"x": "' + b"A" * client.body_limit + b'"}}'
    answer = client.call_too_large("/execute", body)
    assert answer.status == 413, answer
    assert isinstance(answer.json["error"], str), answer
    assert client.execute("print(1)")["stdout"] == "1\n"


def a_timeout_of_nothing_means_the_default(client: Client) -> None:
    assert client.execute("print(1)", timeout_seconds=0)["stdout"] == "1\n"
    assert client.execute("print(1)", timeout_seconds=-5)["stdout"] == "1\n"


def a_timeout_keeps_what_was_printed(client: Client) -> None:
    started = time.monotonic()
    seen = client.execute("print('before', flush=True)\nwhile True: pass", timeout_seconds=1)
    assert time.monotonic() - started < 2.5, "ended more than a second late"
    assert (seen["status"], seen["exit_code"]) == ("error", -1), seen
    assert seen["stdout"] == "before\n", seen


def a_timeout_cannot_be_ignored(client: Client) -> None:
    code = (
        "import signal, time\nfor n in (signal.SIGTERM, signal.SIGINT): signal.signal(n, signal.SIG_IGN)\n"
        "while True:\n    try: time.sleep(60)\n    except BaseException: pass"
    )
    started = time.monotonic()
    assert client.execute(code, timeout_seconds=1)["exit_code"] == -1
    assert time.monotonic() - started < 3, "ended more than a second late"


def a_grandchild_that_holds_the_pipe_does_not_hold_the_answer(client: Client) -> None:
    code = "import subprocess\nsubprocess.Popen(['sleep', '6'])\nprint('done', flush=True)\nimport time; time.sleep(60)"
    started = time.monotonic()
    seen = client.execute(code, timeout_seconds=2)
    assert time.monotonic() - started < 3.5, "the answer waited for the grandchild"
    assert seen["exit_code"] == -1, seen


def a_link_in_the_output_directory_is_not_followed(client: Client) -> None:
    code = "import os\nos.chdir(os.environ['OUTPUT_DIR'])\nos.symlink('/etc/passwd', 'a'); os.symlink('/etc', 'b')"
    assert "files_produced" not in client.execute(code)


_ENVIRONMENTS: Final = """
import glob, json, os
seen = {f'{name}={value}' for name, value in os.environ.items()}
for path in glob.glob('/proc/[0-9]*/environ'):
    try:
        with open(path, errors='replace') as file: seen.update(file.read().split(chr(0)))
    except OSError: pass
print(json.dumps(sorted(seen)))
"""


def the_environment_of_the_server_is_not_visible(client: Client) -> None:
    """Neither secrets by their names, nor, where our own environment has their values, those by any name."""
    seen = [entry.partition("=")[::2] for entry in json.loads(client.execute(_ENVIRONMENTS)["stdout"])]
    secret = {"HOSTNAME", "USER", *client.secret_variables}
    prefixes = ("SANDBOX_", "KUBERNETES", "AWS", "OPENAI")
    leaked = {name for name, _ in seen if name in secret or name.startswith(prefixes)}
    own = {name: os.environ[name] for name in client.secret_variables if os.environ.get(name)}
    leaked |= {f"{name}, as {other}" for name, mine in own.items() for other, value in seen if mine in value}
    assert not leaked, sorted(leaked)  # what is in them stays unsaid


def options_urls_and_paths_are_no_requirements(client: Client) -> None:
    for line in (
        "--index-url=http://127.0.0.1:9/",
        "git+ssh://git@host/x",
        "./x",
        "/x/y",
        "-r x",
        "x @ http://h/x.whl",
        "a\nb",
    ):
        answer = client.post("/execute", {"code": "print(1)", "requirements": [line]})
        refused = answer.status == 400 or (answer.status == 200 and answer.json["exit_code"] == -1)
        assert refused, (line, answer)


def a_failed_installation_says_so(client: Client) -> None:
    seen = client.execute("print(1)", requirements=["surely-no-such-package-4711==0.0.1"], timeout_seconds=20)
    assert (seen["status"], seen["exit_code"], seen["stdout"]) == ("error", -1, ""), seen
    assert seen["stderr"].startswith("package installation failed: "), seen


def installation_and_run_share_one_timeout(client: Client) -> None:
    """Only a slow package shows it; with any other this still says that an installation ends in time."""
    wanted = client.slow_package or f"surely-no-such-package-{secrets.token_hex(8)}"
    started = time.monotonic()
    seen = client.execute("import time; time.sleep(60)", requirements=[wanted], timeout_seconds=4)
    assert time.monotonic() - started < 5.5, "installation and run were each given all of the time"
    assert (seen["status"], seen["exit_code"]) == ("error", -1), seen


def a_flood_of_output_is_cut_and_keeps_both_ends(client: Client) -> None:
    flood = "for _ in range(676): os.write(1, b'x' * (1 << 20))"
    code = f"import os\nos.write(1, b'first\\n')\n{flood}\nos.write(1, b'\\nlast\\n')"
    seen = client.execute(code, timeout_seconds=60)
    assert seen["status"] == "success", seen["stderr"]
    assert len(seen["stdout"]) < 20 << 20, len(seen["stdout"])
    assert seen["stdout"].startswith("first\n"), seen["stdout"][:20]
    assert seen["stdout"].endswith("\nlast\n"), seen["stdout"][-20:]


def names_cannot_leave_the_working_directory(client: Client) -> None:
    for name in ("../x", "../../etc/passwd", "/etc/x", "a/../../x", "..", "a\\..\\b", "a\0b", "x" * 300):
        answer = client.post("/execute", {"code": "print(1)", "files": {name: "aGk="}})
        assert answer.status == 400, (name, answer)


def code_does_not_run_as_root(client: Client) -> None:
    assert client.execute("import os; print(os.getuid() != 0, os.geteuid() != 0)")["stdout"] == "True True\n"


def nothing_is_left_for_the_next_run(client: Client) -> None:
    client.execute("open('left', 'w').write('x'); open('/tmp/left', 'w').write('x')")
    assert (
        client.execute("import os; print(os.path.exists('left'), os.path.exists('/tmp/left'))")["stdout"]
        == "False False\n"
    )


def past_capacity_the_answer_is_429(client: Client) -> None:
    capacity = client.call("GET", "/health").json["capacity"]
    assert capacity >= 3, capacity
    seen: list[Response] = []
    sleep = {"code": "import time; time.sleep(2)"}
    threads = [
        threading.Thread(target=lambda: seen.append(client.post("/execute", sleep))) for _ in range(capacity + 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    full = [answer for answer in seen if answer.status == 429]
    assert len(full) == 2, [answer.status for answer in seen]
    assert all(int(answer.headers["retry-after"]) >= 1 and "at capacity" in answer.json["error"] for answer in full), (
        full
    )


# ── Sessions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def variables_live_between_calls_and_the_last_expression_is_echoed(client: Client) -> None:
    session = client.session()
    client.run(session, "x = 20")
    assert client.run(session, "x + 1")["result"] == "21"
    assert client.run(session, "x + 1;")["result"] is None
    assert client.run(session, "import asyncio; await asyncio.sleep(0, 'slept')")["result"] == "'slept'"
    client.destroy(session)


def tracebacks_show_only_the_users_frames(client: Client) -> None:
    session = client.session()
    seen = client.run(session, "def f():\n    return 1 / 0\nf()")
    assert seen["error"] == {"name": "ZeroDivisionError", "message": "division by zero"}, seen
    assert [line for line in seen["stderr"].splitlines() if "File" in line and "<cell" not in line] == [], seen
    assert "return 1 / 0" in seen["stderr"], seen
    assert client.run(session, "input('name? ')")["error"]["name"] == "EOFError"
    client.destroy(session)


def figures_become_images(client: Client) -> None:
    session = client.session()
    seen = client.run(session, "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nplt.plot([3])\nNone")
    assert [image["mime"] for image in seen["images"]] == ["image/png"] * 2, seen["stderr"]
    assert base64.b64decode(seen["images"][0]["data"]).startswith(b"\x89PNG"), seen
    assert client.run(session, "1")["images"] == []
    client.destroy(session)


def a_timeout_in_a_session_keeps_its_state(client: Client) -> None:
    session = client.session()
    client.run(session, "x = 5")
    seen = client.run(session, "import time; print('a'); time.sleep(60)", timeout_seconds=1)
    assert (seen["status"], seen["stdout"]) == ("timeout", "a\n"), seen
    assert client.run(session, "x")["result"] == "5"
    client.destroy(session)


def output_streams_live_and_in_order(client: Client) -> None:
    session = client.session()
    code = "import sys\nfor i in range(3): print(i); print(i, file=sys.stderr)"
    body = json.dumps({"code": code, "stream": True}).encode()
    answer = client.call("POST", f"/sessions/{session}/execute", body)
    assert answer.headers["content-type"].startswith("text/event-stream"), answer
    events = [frame.split("\n", 1) for frame in answer.body.decode().strip().split("\n\n")]
    last = json.loads(events[-1][1].removeprefix("data: "))
    assert events[-1][0] == "event: result", events
    assert (
        "".join(part["stream"][3] + part["text"] for part in last["output"]) == "o0\ne0\n" + "o1\ne1\n" + "o2\ne2\n"
    ), last
    client.destroy(session)


def an_interrupt_stops_the_call_and_keeps_the_session(client: Client) -> None:
    session = client.session()
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.append(client.run(session, "y = 1\nwhile True: pass")))
    thread.start()
    time.sleep(0.5)
    assert client.post(f"/sessions/{session}/interrupt", {}).json == {"interrupted": True}
    thread.join(10)
    assert seen[0]["status"] == "interrupted", seen
    assert client.run(session, "y")["result"] == "1"
    client.destroy(session)


def files_of_a_session_can_be_managed(client: Client) -> None:
    session = client.session(files={"a.txt": base64.b64encode(b"a").decode()})
    base = f"/sessions/{session}"
    assert client.call("PUT", f"{base}/files/d/b.txt", b"bb").status == 201
    assert client.run(session, "open('d/b.txt').read()")["result"] == "'bb'"
    assert client.post(f"{base}/move", {"from": "d/b.txt", "to": "e/c.txt"}).status == 200
    answer = client.call("GET", f"{base}/files/e/c.txt")
    assert (answer.body, answer.headers["x-content-type-options"]) == (b"bb", "nosniff"), answer
    assert answer.headers["content-disposition"].startswith("attachment"), answer
    listed = client.call("GET", f"{base}/files").json["files"]
    assert {f["path"]: f["kind"] for f in listed} == {
        "a.txt": "file",
        "d": "directory",
        "e": "directory",
        "e/c.txt": "file",
    }, listed
    assert client.call("GET", f"{base}/stat/e/c.txt").json["size"] == 2
    assert client.call("DELETE", f"{base}/files/e").status == 204
    assert client.call("GET", f"{base}/files/e/c.txt").status == 404
    client.destroy(session)
    assert client.call("GET", base).status in {404, 410}


def a_tree_travels_as_one_tar(client: Client) -> None:
    session = client.session()
    sent = io.BytesIO()
    with tarfile.open(fileobj=sent, mode="w") as archive:
        for i in range(50):
            member = tarfile.TarInfo(f"t/{i}.txt")
            member.size = i
            archive.addfile(member, io.BytesIO(b"x" * i))
    assert client.call("PUT", f"/sessions/{session}/archive", sent.getvalue()).json == {"members": 50}
    assert client.run(session, "import os; sum(os.path.getsize(f't/{n}') for n in os.listdir('t'))")["result"] == str(
        sum(range(50))
    )
    back = client.call("GET", f"/sessions/{session}/archive?path=t")
    with tarfile.open(fileobj=io.BytesIO(back.body)) as archive:
        assert {m.name: m.size for m in archive} == {f"{i}.txt": i for i in range(50)}
    client.destroy(session)


def a_tar_with_links_or_devices_or_ways_out_is_refused(client: Client) -> None:
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


def an_unknown_session_is_not_found(client: Client) -> None:
    assert client.post("/sessions/sess_0123/execute", {"code": "1"}).status == 404


BASE: Final[tuple[Callable[[Client], None], ...]] = (
    health_says_what_a_probe_needs,
    a_run_answers_its_output_and_exit_code,
    failing_code_is_a_result_not_an_error,
    files_go_in_and_come_out,
    bad_requests_are_refused,
    a_body_over_the_limit_is_413,
    a_timeout_of_nothing_means_the_default,
    a_timeout_keeps_what_was_printed,
    a_timeout_cannot_be_ignored,
    a_grandchild_that_holds_the_pipe_does_not_hold_the_answer,
    a_link_in_the_output_directory_is_not_followed,
    the_environment_of_the_server_is_not_visible,
    options_urls_and_paths_are_no_requirements,
    a_failed_installation_says_so,
    installation_and_run_share_one_timeout,
    a_flood_of_output_is_cut_and_keeps_both_ends,
    names_cannot_leave_the_working_directory,
    code_does_not_run_as_root,
    nothing_is_left_for_the_next_run,
    past_capacity_the_answer_is_429,
)

SESSIONS: Final[tuple[Callable[[Client], None], ...]] = (
    variables_live_between_calls_and_the_last_expression_is_echoed,
    tracebacks_show_only_the_users_frames,
    figures_become_images,
    a_timeout_in_a_session_keeps_its_state,
    output_streams_live_and_in_order,
    an_interrupt_stops_the_call_and_keeps_the_session,
    files_of_a_session_can_be_managed,
    a_tree_travels_as_one_tar,
    a_tar_with_links_or_devices_or_ways_out_is_refused,
    an_unknown_session_is_not_found,
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m antwort.testing.sandbox_protocol",
        description="Check a server against the sandbox protocol. Says what held; exits with 1 if anything did not.",
    )
    parser.add_argument("url", metavar="URL", help="where the server is, such as http://127.0.0.1:8080")
    parser.add_argument("--base", action="store_true", help="leave out sessions, which other servers may lack")
    parser.add_argument(
        "--token",
        default=os.environ.get("SANDBOX_TOKEN"),
        help="sent as `Authorization: Bearer …`; SANDBOX_TOKEN keeps it out of the list of processes  [default: none]",
    )
    parser.add_argument(
        "--slow-package",
        metavar="NAME",
        help="a package that takes two seconds or more to install and is not there yet: without one, whether "
        "installation and run share one timeout cannot be told  [default: none]",
    )
    parser.add_argument(
        "--body-limit", type=int, default=64 << 20, metavar="BYTES", help="its largest body  [default: %(default)s]"
    )
    parser.add_argument(
        "--secret-variable",
        action="append",
        default=[],
        metavar="NAME",
        help="a variable of the server's environment that no code may see; given again for each further one. If it is "
        "set here too, its value is looked for under every name, and is neither sent nor shown  [default: none]",
    )
    return parser


def main(arguments: list[str]) -> int:
    """Run every check and say what held."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if not __debug__:
        parser.error("under -O assertions are gone and every check would pass")
    client = Client(
        given.url.rstrip("/"), given.token, given.slow_package, given.body_limit, tuple(given.secret_variable)
    )
    failed = 0
    for check in BASE if given.base else BASE + SESSIONS:
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
