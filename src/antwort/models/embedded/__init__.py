"""Embedded model: a small model in a llama.cpp process, started with the first request and restarted when it dies.

    weights, sources, pull    catalogue and cache of weights, download sources, download
    server, supervisor        the llama.cpp process, and its start, restart and stop
    prompt, generation        prompt messages, and the completions that make up one answer; both pure
    model                     `Embedded` implements the engine's `Model` port
    cli                       `antwort model pull | list | rm`

A small model does not reliably write tool calls in its trained format. So it writes plain text or a fenced code block;
the block becomes the tool call.
"""

from __future__ import annotations

from importlib.util import find_spec

from antwort.models.embedded.model import Embedded
from antwort.models.embedded.supervisor import Supervisor
from antwort.models.embedded.weights import DEFAULT_MODEL, WeightsCache, WeightsError, find_weights

__all__ = ["DEFAULT_MODEL", "Embedded", "Supervisor", "WeightsCache", "WeightsError", "available", "find_weights"]


def available() -> bool:
    """Whether llama.cpp is installed. It is imported only in the process of `server`."""
    return find_spec("xllamacpp") is not None
