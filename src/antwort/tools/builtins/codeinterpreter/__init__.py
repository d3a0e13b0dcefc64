"""Code interpreter: runs the Python code of the model in a container.

    types        the function that the model sees, and its arguments
    provider     prepares it for a response
    prepared     executes the calls of one response, in its container (`antwort.tools.builtins.container`)
    call         one call, from the first character of its code to its item
    results      the item of a call, and the text that the model reads

The client of the sandboxes is `antwort.containers.sandboxes`: containers outlive a
response, and this tool does not.
"""

from __future__ import annotations

from antwort.tools.builtins.codeinterpreter.provider import CodeInterpreterProvider

__all__ = ["CodeInterpreterProvider"]
