"""Sandbox server and jail: isolated Python interpreters, forked in milliseconds.

From the outside in: `server` (HTTP), `pool` (warm zygotes), `container` (one forked interpreter), `host` (bubblewrap,
cgroups, isolation probe), `jail` (the code inside), `packages` (installation) and `files` (a container's files). The
usage is in docs/sandbox.md, the threat model in docs/security.md. `antwort.testing.sandbox_protocol` tests any server
of the protocol.
"""

from __future__ import annotations

from antwort.sandbox.container.container import Container
from antwort.sandbox.container.reply import ExecReply
from antwort.sandbox.host.probe import Host, probe
from antwort.sandbox.pool.pool import Pool

from .errors import SandboxServerError
from .limits import ContainerLimits, tier

__all__ = ["Container", "ContainerLimits", "ExecReply", "Host", "Pool", "SandboxServerError", "probe", "tier"]
