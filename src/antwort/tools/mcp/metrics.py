"""Metrics of calls of MCP tools. Servers and tools are no labels: clients choose their names."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import Counter, Histogram
from prometheus_client.registry import Collector


class McpMetrics:
    """Counts calls by their outcome, and lists that failed."""

    def __init__(self) -> None:
        self._calls = Counter("antwort_mcp_calls", "Calls of MCP tools, by outcome", ["outcome"], registry=None)
        self._seconds = Histogram("antwort_mcp_call_seconds", "Duration of calls of MCP tools", registry=None)
        self._failed_lists = Counter(
            "antwort_mcp_failed_lists", "Lists of tools that an MCP server did not give", registry=None
        )

    @property
    def collectors(self) -> Sequence[Collector]:
        return (self._calls, self._seconds, self._failed_lists)

    def record(self, outcome: str, seconds: float) -> None:
        """A call has ended: `completed`, or with an error of this type."""
        self._calls.labels(outcome).inc()
        self._seconds.observe(seconds)

    def record_failed_list(self) -> None:
        self._failed_lists.inc()
