"""The jail and the sandbox server: a fresh, isolated, fully equipped Python in milliseconds.

Stands alone: imports nothing else of `antwort`. From the outside in: `server` (HTTP), `pool` (zygotes kept warm),
`container` (one forked interpreter, with its `channel`, its `pipes` and one `call` after the other), `bubblewrap` and
`jail` (the walls). `host` says what this machine gives, `conformance` tests any server that speaks the protocol. How to
use it is in docs/sandbox.md, the threat model in docs/security.md.
"""

from __future__ import annotations

from antwort.sandbox.container.container import Container
from antwort.sandbox.container.reply import ExecReply
from antwort.sandbox.host.probe import Host, probe
from antwort.sandbox.pool.pool import Pool

from .errors import SandboxError
from .limits import ContainerLimits, tier

__all__ = ["Container", "ContainerLimits", "ExecReply", "Host", "Pool", "SandboxError", "probe", "tier"]
