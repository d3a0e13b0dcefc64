from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager

import pytest
from fixtures_server import ROOT, run_server

IN_A_PROCESS_OF_ITS_OWN = """
import json, resource, sys
from antwort.http.server import make_room
soft, hard, connections = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(json.dumps([make_room(connections), resource.getrlimit(resource.RLIMIT_NOFILE)[0]]))
"""


@pytest.mark.parametrize(
    "soft, hard, granted, now",
    [
        pytest.param(300, 5000, 1000, 2256, id="the soft limit is raised"),
        pytest.param(4000, 5000, 1000, 4000, id="and never lowered"),
        pytest.param(300, 456, 100, 456, id="the hard one is not passed: there is room for fewer"),
        pytest.param(100, 100, 1, 100, id="one is let in, whatever the limit"),
    ],
)
def test_a_process_makes_room_for_its_connections(soft, hard, granted, now):
    command = [sys.executable, "-c", IN_A_PROCESS_OF_ITS_OWN, str(soft), str(hard), "1000"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    told = subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout

    assert json.loads(told) == [granted, now]


@contextmanager
def soft_limit(files):
    """What is started meanwhile inherits it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_more_streams_are_open_at_once_than_the_soft_limit_has_files(tmp_path):
    body = b'{"input": "forever", "stream": true, "store": false}'
    request = b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    with ExitStack() as ends:
        with soft_limit(96):
            server = ends.enter_context(run_server(tmp_path / "server"))
        host, port = server.url.removeprefix("http://").split(":")
        streams = [ends.enter_context(socket.create_connection((host, int(port)), timeout=20)) for _ in range(120)]
        for stream in streams:
            stream.sendall(request)
        answers = {stream.recv(12) for stream in streams}

    assert answers == {b"HTTP/1.1 200"}
