"""Attacks on the runner and the control channel, which can only end the attacker's own container."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest

# The code can find the call's token in the runner's frames and forge the reply: it is its own result.
FORGE = """
import json, os, struct, sys, time
def token():
    frame = sys._getframe()
    while 'request' not in frame.f_locals: frame = frame.f_back
    return frame.f_locals['request']['call']
def reply(blobs=(), **header):
    header = json.dumps({'call': token(), 'status': 'success', 'exit_code': 0, 'parts': [],
                         'blobs': [len(b) for b in blobs], **header}).encode()
    os.write(4000, struct.pack('>II', len(header), sum(map(len, blobs))) + header + b''.join(blobs))
"""

INVALID = [
    {"status": []},
    {"status": {}},
    {"status": "ended"},
    {"status": "timeout"},
    {"exit_code": 10**300},
    {"exit_code": -1},
    {"exit_code": True},
    {"exit_code": None},
    {"parts": None},
    {"parts": ["result"]},
    {"parts": [[]]},
    {"parts": {}},
    {"call": None},
    {"call": []},
]


def peak_kilobytes(attacker) -> int:
    status = Path(f"/proc/{attacker.server.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def cpu_seconds(attacker) -> float:
    fields = Path(f"/proc/{attacker.server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


@pytest.mark.parametrize("fields", INVALID, ids=str)
def test_an_invalid_reply_ends_the_container(attacker, fields):
    seen = attacker.run(f"{FORGE}reply(**{fields!r}); time.sleep(10)")
    assert (seen["status"], seen["result"]) == ("ended", None)
    assert "unexpected reply" in seen["reason"]


@pytest.mark.parametrize("header", [b"[]", b"null", b'{"blobs": 7}', b'{"blobs": [-1]}', b"[" * 60_000, b"\xff", b"{}"])
def test_an_invalid_header_ends_the_container(attacker, header):
    frame = f"struct.pack('>II', {len(header)}, 0) + {header!r}"
    seen = attacker.run(f"import os, struct, time\nos.write(4000, {frame})\ntime.sleep(10)")
    assert seen["status"] == "ended"
    assert "broke its control channel" in seen["reason"]


def test_replying_twice_ends_the_container(attacker):
    attacker.run(f"{FORGE}reply(); reply(); time.sleep(10)")
    deadline = time.monotonic() + 5
    while (response := attacker.client.post(f"/sessions/{attacker.session}/execute", {"code": "'mine'"})).status == 200:
        assert response.json["result"] is None
        assert time.monotonic() < deadline


def test_a_header_that_is_expensive_to_parse_is_refused(attacker):
    before = peak_kilobytes(attacker)
    header = "h = b'[' + b'[],' * 9_000_000 + b'0]'\nos.write(4000, struct.pack('>II', len(h), 0)); os.write(4000, h)"
    seen = attacker.run(f"import os, struct\n{header}")
    assert seen["status"] == "ended"
    assert peak_kilobytes(attacker) - before < 32_000


def test_surrogates_are_escaped(attacker):
    """A lone surrogate cannot be encoded: passed on unchanged it would break the JSON response."""
    assert attacker.evaluate("class Odd:\n    def __repr__(self): return 'a\\ud800b'\nOdd()") == "a\\ud800b"
    seen = attacker.run("raise ValueError('m\\ud800')")
    assert seen["error"] == {"name": "ValueError", "message": "m\\ud800"}
    seen = attacker.run(f"{FORGE}reply([b'\\xff\\xfe'], parts=['result']); time.sleep(10)")
    assert seen["result"] == "\ufffd\ufffd"


def test_a_flood_between_calls_does_not_keep_the_server_busy(attacker):
    attacker.run("import subprocess\np = [subprocess.Popen(['cat', '/dev/zero']) for _ in range(2)]")
    before = cpu_seconds(attacker)
    time.sleep(1.5)
    assert cpu_seconds(attacker) - before < 0.5
    assert attacker.evaluate("[q.kill() or q.wait() for q in p] and 'here'") == "'here'"
    time.sleep(0.2)
    assert attacker.run("print('clean')")["stdout"] == "clean\n"


def test_a_channel_that_is_never_read_does_not_block_the_server(attacker):
    """The interpreter has stopped itself, and the next call does not fit into the socket buffer."""
    attacker.run("import os, signal, threading\nthreading.Timer(0.2, os.kill, (os.getpid(), signal.SIGSTOP)).start()")
    time.sleep(0.5)
    started = time.monotonic()
    seen = attacker.run("#" * (4 << 20), timeout_seconds=1)
    assert time.monotonic() - started < 4
    assert (seen["status"], seen["reason"]) == ("ended", "the code broke its control channel")


def test_sigstop_does_not_outlast_the_timeout(attacker):
    started = time.monotonic()
    assert (
        attacker.run(
            """
        import os, signal
        os.kill(os.getpid(), signal.SIGSTOP)
    """,
            timeout_seconds=1,
        )["status"]
        == "timeout"
    )
    assert time.monotonic() - started < 3


@pytest.mark.parametrize(
    "code",
    [
        "import os; os._exit(3)",
        "import os; os.abort()",
        "import ctypes; ctypes.string_at(0)",
        "import os; os.execv('/bin/sh', ['sh', '-c', 'sleep 30'])",
        "import os; os.dup2(4000, 9); os.execv('/bin/sh', ['sh', '-c', 'echo forged forged >&9; sleep 30'])",
        "import os; os.closerange(0, 1 << 16); import time; time.sleep(30)",
    ],
)
def test_exiting_or_replacing_the_interpreter_is_detected(attacker, code):
    started = time.monotonic()
    seen = attacker.run(code, timeout_seconds=3)
    assert seen["status"] in {"ended", "timeout"}
    assert seen["result"] is None
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    "code",
    [
        "class B:\n    def __repr__(self): raise SystemError('no')\nB()",
        "class B(Exception):\n    def __str__(self): raise self\nraise B",
        "class B(BaseException): pass\nraise B",
        "class B:\n    def __str__(self): raise ValueError\nimport sys; sys.exit(B())",
        "class B(int):\n    def __and__(self, other): return 'x'\nimport sys; sys.exit(B(3))",
        "class B:\n    def __del__(self): raise SystemError\nx = [B() for _ in range(1000)]; del x",
        "import atexit; atexit.register(lambda: 1 / 0); raise SystemExit(4)",
        "def f(): f()\nf()",
        "raise ExceptionGroup('g', [ExceptionGroup('g', [ValueError('x' * 100)] * 50)] * 50)",
        "e = ValueError(); e.__cause__ = KeyError(); e.__cause__.__context__ = e; raise e",
        "raise ValueError('x' * 50_000_000)",
        "import sys; sys.stdout = sys.stderr = None; 1 / 0",
        "import sys; sys.modules.clear(); 1 / 0",
        "import builtins; builtins.repr = builtins.isinstance = builtins.type = None; 7",
        "import gc; gc.set_threshold(1); gc.set_debug(gc.DEBUG_SAVEALL); x = [[] for _ in range(10_000)]",
        "class B:\n    def _repr_png_(self): return b'x' * (60 << 20)\nB()",
        "class B:\n    def _repr_png_(self): return [b'x']\nB()",
    ],
)
def test_malicious_objects_affect_only_their_own_result(attacker, code):
    seen = attacker.run(code, timeout_seconds=30)
    assert seen["status"] in {"success", "error", "exit", "interrupted", "ended"}
    assert len(json.dumps(seen)) < 12_000_000


def test_a_client_disconnect_interrupts_the_call(attacker):
    """The container can be used again afterwards."""
    host, port = attacker.client.url.removeprefix("http://").split(":")
    body = json.dumps({"code": "import time\ntry: time.sleep(60)\nfinally: ended = True", "stream": True}).encode()
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST /sessions/{attacker.session}/execute HTTP/1.1\r\nHost: localhost\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        time.sleep(0.5)
    seen = attacker.run("ended", timeout_seconds=10)
    assert seen["result"] == "True", seen


def test_bytes_between_calls_end_the_container_before_they_are_buffered(attacker):
    before = peak_kilobytes(attacker)
    attacker.run("""
        import os, struct, threading, time
        def send():
            time.sleep(0.3)
            os.write(4000, struct.pack('>II', 100, 64 << 20))
            for _ in range(63): os.write(4000, b'x' * (1 << 20))
        threading.Thread(target=send, daemon=True).start()
    """)
    time.sleep(1)
    response = attacker.client.post(f"/sessions/{attacker.session}/execute", {"code": "1"})
    assert (response.status, "unexpected reply" in response.json["reason"]) == (410, True)
    assert peak_kilobytes(attacker) - before < 16 << 10


def test_after_an_invalid_reply_a_valid_one_is_ignored(attacker):
    seen = attacker.run(f"{FORGE}reply(call='0' * 16)")
    assert (seen["status"], seen["result"]) == ("ended", None)
