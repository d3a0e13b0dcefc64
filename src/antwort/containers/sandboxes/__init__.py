"""Sandbox backends: the port, and its implementations, which all speak the HTTP protocol of the sandbox server.

port        protocols, execution result, errors
protocol    JSON of the sandbox server
remote      `sandbox_url`: a sandbox server elsewhere; leases and requests
local       the default: a sandbox server as a child process, in the jail of this machine
            (`sandbox_template`, pods of Kubernetes: `antwort.tools.builtins.codeinterpreter.kubernetes`)
backends    selects one of them by the configuration
"""

from __future__ import annotations

from antwort.containers.sandboxes.backends import Backend, open_backend
from antwort.containers.sandboxes.local import LocalSandboxes
from antwort.containers.sandboxes.port import Sandbox, Sandboxes
from antwort.containers.sandboxes.remote import RemoteSandboxes

__all__ = ["Backend", "LocalSandboxes", "RemoteSandboxes", "Sandbox", "Sandboxes", "open_backend"]
