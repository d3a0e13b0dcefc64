"""The code interpreter: Python that the model writes, run in a container of the caller's.

    types        the function that a model sees, and its arguments
    provider     makes it ready for a response: which container, which files
    call         one call, from the first character of its code to its item
    results      what a run came to: outputs for the caller, a text for the model
    citations    where an answer speaks of a file

The client of the sandboxes is `antwort.containers.sandboxes.client`: what runs code belongs
to containers, which outlive a response, and not to this tool, which does not.
"""

from __future__ import annotations

from antwort.tools.builtins.codeinterpreter.provider import CodeInterpreter

__all__ = ["CodeInterpreter"]
