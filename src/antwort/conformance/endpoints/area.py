"""The areas of endpoints in the order of the report."""

from __future__ import annotations

from typing import Final

from antwort.conformance.endpoints.base import EndpointChecks
from antwort.conformance.endpoints.compaction import CompactionChecks, InputTokenChecks
from antwort.conformance.endpoints.containers import ContainerChecks
from antwort.conformance.endpoints.conversations import ConversationChecks
from antwort.conformance.endpoints.errors import ErrorChecks, ResponseChecks
from antwort.conformance.endpoints.files import FileChecks
from antwort.conformance.endpoints.tenants import TenantChecks

AREAS: Final[tuple[type[EndpointChecks], ...]] = (
    ResponseChecks,
    ConversationChecks,
    CompactionChecks,
    InputTokenChecks,
    FileChecks,
    ContainerChecks,
    ErrorChecks,
    TenantChecks,
)
