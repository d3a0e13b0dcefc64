"""Fixtures for encrypted items: a sealer with a new key, which is in no file."""

from __future__ import annotations

import base64
import secrets
from pathlib import Path

from antwort.engine.compaction.opening import TenantSealer
from antwort.sealing import Sealer, SealingKey, SealingKeys


def new_sealer() -> Sealer:
    secret = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode().rstrip("=")
    key = SealingKey(id=secrets.token_hex(4), secret=secret, created_at=0)
    return Sealer(SealingKeys(Path("not-written.json"), (key,)))


def tenant_sealer(tenant: str = "tenant", sealer: Sealer | None = None) -> TenantSealer:
    return TenantSealer(sealer or new_sealer(), tenant)
