"""Fixtures of the sandbox tests."""

from __future__ import annotations

from fixtures_sandbox_attacks import attacker, attacker_on, identities, identity, package_index, serve, server

__all__ = ["attacker", "attacker_on", "identities", "identity", "package_index", "serve", "server"]
