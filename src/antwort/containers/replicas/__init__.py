"""Operations on containers whose sandboxes other replicas hold: calls over HTTP between the replicas of one store."""

from __future__ import annotations

__all__: list[str] = []
