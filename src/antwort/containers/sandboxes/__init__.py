"""Where the code of containers runs: one port (`port`), one client (`client`), and the places that give sandboxes.

port      what containers ask for, and the errors
client    a session of a sandbox server, over HTTP: the only way to one, wherever it runs
remote    `sandbox_url`: a server that somebody runs
local     neither set: a server as our own child, in this machine's jail
places    which of them it is, by the configuration
"""

from __future__ import annotations

from antwort.containers.sandboxes.backends import Backend, open_backend
from antwort.containers.sandboxes.client import SandboxServer
from antwort.containers.sandboxes.local import JailUnavailable, LocalSandboxes
from antwort.containers.sandboxes.port import (
    Figure,
    Outcome,
    Output,
    Sandbox,
    Sandboxes,
    SandboxFault,
    SandboxFile,
    SandboxLost,
    SandboxRefused,
    SandboxTrouble,
)
from antwort.containers.sandboxes.remote import RemoteSandboxes

__all__ = [
    "Backend",
    "Figure",
    "JailUnavailable",
    "LocalSandboxes",
    "Outcome",
    "Output",
    "RemoteSandboxes",
    "Sandbox",
    "SandboxFault",
    "SandboxFile",
    "SandboxLost",
    "SandboxRefused",
    "SandboxServer",
    "SandboxTrouble",
    "Sandboxes",
    "open_backend",
]
