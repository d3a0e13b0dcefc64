"""The process with the model in it: `python -m antwort.models.embedded.server`, settings as one line on its input.

It says its address on its output, and ends when its input does: whoever started it holds the
other end, so it is gone when they are, however they ended.
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
    """What the process is told."""

    weights: str
    key: str
    context: int
    """Tokens that one conversation may have."""
    parallel: int
    """How many are answered at once."""
    threads: int


class Ready(Struct, frozen=True):
    """What the process says once it can be asked."""

    address: str


def main() -> None:
    """Load, listen, wait for the end of the input."""
    settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=LlamaSettings)
    watcher = threading.Thread(target=_end_with_input, daemon=True)
    watcher.start()  # before the weights are loaded, which takes a while
    said = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # llama.cpp may print; what is on the output is ours
    server = _listen(settings)
    said.write(msgspec.json.encode(Ready(server.listening_address)) + b"\n")
    said.flush()
    watcher.join()


def _end_with_input() -> None:
    while sys.stdin.buffer.readline():
        pass
    os._exit(0)  # llama.cpp's threads answer to nobody any more, and joining them takes until their answers are whole


def _listen(settings: LlamaSettings) -> Any:  # noqa: ANN401 - the library has no types
    xllamacpp: Any = importlib.import_module("xllamacpp")  # the door to llama.cpp: only this process goes through it
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
