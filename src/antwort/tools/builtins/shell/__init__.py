"""Hosted shell: runs shell commands of the model in a container, which it shares with the code interpreter.

types     the function that the model sees, and its arguments
provider  prepares it for a response
prepared  runs the calls of one response, in its container (`antwort.tools.builtins.container`)
call      one call: its commands while the model writes them, then their output, as two items
results   the outputs of commands, for the client and for the model
"""

from __future__ import annotations

from antwort.tools.builtins.shell.provider import ShellProvider

__all__ = ["ShellProvider"]
