"""The llama.cpp server process: `python -m antwort.models.embedded.server`.

It reads `LlamaSettings` as one line of JSON from stdin, writes `Ready` to stdout, and exits at end of file on stdin:
the parent holds the other end, so the process exits with its parent, even if the parent is killed.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from typing import Any

import msgspec
from msgspec import Struct


class LlamaSettings(Struct, frozen=True, kw_only=True):
    """Settings that the parent sends to the process."""

    weights: str
    key: str
    context: int
    """Maximum tokens of one conversation."""
    parallel: int
    """Number of requests processed at once."""
    threads: int


class Ready(Struct, frozen=True):
    """Sent to the parent when the server accepts requests."""

    address: str


def main() -> None:
    """Load the weights, listen, and wait for end of file on stdin."""
    settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=LlamaSettings)
    watcher = threading.Thread(target=_exit_at_eof, daemon=True)
    watcher.start()  # before the weights are loaded, which takes seconds
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # llama.cpp may print to stdout, which is reserved for `Ready`
    server = _start_llama_server(settings)
    output.write(msgspec.json.encode(Ready(server.listening_address)) + b"\n")
    output.flush()
    watcher.join()


def _exit_at_eof() -> None:
    while sys.stdin.buffer.readline():
        pass
    os._exit(0)  # a normal exit would join llama.cpp's threads, which finish their answers first


def _start_llama_server(settings: LlamaSettings) -> Any:  # noqa: ANN401 - the library has no types
    xllamacpp: Any = importlib.import_module("xllamacpp")  # imported in this process only
    params = xllamacpp.CommonParams()
    params.model.path = settings.weights
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [settings.key]
    params.n_ctx = settings.context * settings.parallel
    params.n_parallel = settings.parallel
    params.cpuparams.n_threads = settings.threads
    params.cpuparams_batch.n_threads = settings.threads
    params.use_jinja = True
    params.ui = False
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
