"""The jail and the sandbox server: a fresh, isolated, fully equipped Python in milliseconds.

Stands alone: imports nothing else of `antwort`. From the outside in: `server` (HTTP), `pool` (zygotes kept warm),
`container` (one forked interpreter, with its `channel`, its `pipes` and one `call` after the other), `bubblewrap` and
`jail` (the walls). `host` says what this machine gives, `conformance` tests any server that speaks the protocol. How to
use it is in docs/sandbox.md, the threat model in docs/security.md.
"""

from __future__ import annotations

from .call import Outcome
from .container import Container
from .errors import SandboxError
from .host import Host, probe
from .limits import Limits, tier
from .pool import Pool

__all__ = ["Container", "Host", "Limits", "Outcome", "Pool", "SandboxError", "probe", "tier"]
