"""Checks of the endpoints beside the creation of responses: files, containers, conversations, compaction, errors."""

from __future__ import annotations

from antwort.conformance.endpoints.area import AREAS, EndpointChecks

__all__ = ["AREAS", "EndpointChecks"]
