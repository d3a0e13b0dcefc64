from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager

import pytest
from fixtures_server import ROOT, serving

PROGRAM = """
import json, resource, sys
from antwort.http.server import raise_nofile_limit
soft, hard, connections = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(json.dumps([raise_nofile_limit(connections), resource.getrlimit(resource.RLIMIT_NOFILE)[0]]))
"""


@pytest.mark.parametrize(
    "soft, hard, granted, now",
    [
        pytest.param(300, 5000, 1000, 2256, id="the soft limit is raised"),
        pytest.param(4000, 5000, 1000, 4000, id="the soft limit is never lowered"),
        pytest.param(300, 456, 100, 456, id="the hard limit allows fewer connections"),
        pytest.param(100, 100, 1, 100, id="at least one connection"),
    ],
)
def test_the_open_file_limit_is_raised_for_the_connections(soft, hard, granted, now):
    command = [sys.executable, "-c", PROGRAM, str(soft), str(hard), "1000"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    output = subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout

    assert json.loads(output) == [granted, now]


@contextmanager
def soft_limit(files):
    """Processes started within the block inherit the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_more_streams_are_open_than_the_initial_soft_limit_has_files(tmp_path):
    body = b'{"input": "forever", "stream": true, "store": false}'
    request = b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    with ExitStack() as stack:
        with soft_limit(96):
            server = stack.enter_context(serving(tmp_path / "server"))
        host, port = server.url.removeprefix("http://").split(":")
        streams = [stack.enter_context(socket.create_connection((host, int(port)), timeout=20)) for _ in range(120)]
        for stream in streams:
            stream.sendall(request)
        responses = {stream.recv(12) for stream in streams}

    assert responses == {b"HTTP/1.1 200"}
