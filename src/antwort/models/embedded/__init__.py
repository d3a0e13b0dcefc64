"""A small model in a process of its own: llama.cpp, started with the first request, started again when it dies.

    weights, sources, pull    what there is, where it comes from, and how it gets here
    server, supervisor        the process, and who looks after it
    dialogue, turn            what a small model is told, and what its words mean: both pure
    model                     the driver: `Embedded` speaks the engine's `Model` port

A small model does not call tools in its own format reliably. So it writes as it would write
to a person: an answer, or a fenced block, which becomes the call.
"""

from __future__ import annotations

from importlib.util import find_spec

from antwort.models.embedded.model import Embedded
from antwort.models.embedded.supervisor import Supervisor
from antwort.models.embedded.weights import DEFAULT, Cache, Missing, WeightsError, find

__all__ = ["DEFAULT", "Cache", "Embedded", "Missing", "Supervisor", "WeightsError", "available", "find"]


def available() -> bool:
    """Whether llama.cpp is installed. It is loaded in the model's own process, never here."""
    return find_spec("xllamacpp") is not None
