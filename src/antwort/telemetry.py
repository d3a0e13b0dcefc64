"""Telemetry: structured logs, audit log, Prometheus metrics and OpenTelemetry spans. None of them contains content.

The only exception are the redacted error messages of upstreams in the log, which may quote a prompt.

Log lines carry the request id. An exception is logged by its type and traceback locations, without its message and
without absolute paths, because a message may quote a prompt or a key. Metrics have a registry of their own. Spans
follow OpenTelemetry's conventions for generative AI; they cost nothing unless its SDK is installed and configured.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from http import HTTPStatus
from typing import Any, Literal, TypeAlias, cast

import structlog
from msgspec import UnsetType
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from antwort.api.responses import CompactionNote

_LATENCY_BUCKETS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

EventDict: TypeAlias = MutableMapping[str, Any]
SandboxOperation: TypeAlias = Literal["acquire", "execute"]
ExcInfo: TypeAlias = tuple[object, BaseException | None, object]


# ── logs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def configure_logging(level: str = "info", log_format: Literal["auto", "json", "text"] = "auto") -> None:
    """Log to stderr in one format, including the loggers of libraries."""
    is_text = log_format == "text" or (log_format == "auto" and sys.stderr.isatty())
    processors: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        redact_exception,
    ]
    formatter = structlog.stdlib.ProcessorFormatter
    structlog.configure(
        processors=[*processors, formatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    renderer = structlog.dev.ConsoleRenderer() if is_text else structlog.processors.JSONRenderer()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        formatter(foreign_pre_chain=processors, processors=[formatter.remove_processors_meta, renderer])
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("httpx2", "httpcore2", "uvicorn.access", "uvicorn.error", "asyncio"):
        logging.getLogger(name).setLevel("WARNING")


def redact_exception(logger: object, method: str, event: EventDict) -> EventDict:
    """Structlog processor: replace an exception by its type, its cause's type and its traceback locations."""
    del logger, method
    exc_info: object = event.pop("exc_info", None)
    if exc_info is True:
        exc_info = sys.exc_info()
    error = cast("ExcInfo", exc_info)[1] if isinstance(exc_info, tuple) else exc_info
    if isinstance(error, BaseException):
        event["exception"] = type(error).__name__
        event["where"] = [  # `extract_tb` would read source files and block the event loop
            f"{_module(frame.f_code.co_filename)}:{line} {frame.f_code.co_name}"
            for frame, line in deque(traceback.walk_tb(error.__traceback__), maxlen=8)
        ]
        if error.__cause__ is not None:
            event["cause"] = type(error.__cause__).__name__
    return event


def _module(path: str) -> str:
    return "/".join(path.rsplit("/", 3)[-2:])


log = structlog.stdlib.get_logger("antwort")
_audit = structlog.stdlib.get_logger("antwort.audit")


def audit(action: str, identifier: str, **more: object) -> None:
    """Write an audit record of a change. Tenant, key and request id are bound by the middleware."""
    _audit.info("audit", action=action, object_id=identifier, **more)


# ── metrics ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Metrics:
    """Prometheus metrics. No label holds a value that a caller chooses."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter("antwort_http_requests", "HTTP requests.", "method", "route", "status")
        self.request_seconds = self._histogram(
            "antwort_http_request_seconds", "Duration of a request, until its response has been sent.", "route"
        )
        self.responses = self._counter("antwort_responses", "Finished responses.", "model", "status")
        self.running = Gauge("antwort_responses_running", "Running responses.", registry=self.registry)
        self.websockets = Gauge("antwort_websockets", "Open WebSockets.", registry=self.registry)
        self.model_seconds = self._histogram("antwort_model_seconds", "Duration of a model call.", "model")
        self.first_piece_seconds = self._histogram(
            "antwort_model_first_piece_seconds", "Time to the first chunk of a model call.", "model"
        )
        self.tokens = self._counter("antwort_tokens", "Tokens, as counted by the models.", "model", "kind")
        self.faults = self._counter("antwort_model_faults", "Failed model calls.", "model", "code")
        self.compactions = self._counter("antwort_compactions", "Compacted histories.", "method")
        self.containers = self._counter(
            "antwort_containers", "Containers created, deleted, expired, or that lost their sandbox.", "event", "tier"
        )
        self.sandboxes = Gauge("antwort_sandboxes", "Sandboxes in use by containers.", registry=self.registry)
        self.sandbox_seconds = self._histogram(
            "antwort_sandbox_seconds", "Duration of acquiring a sandbox, or of running code in one.", "work", "status"
        )
        self.replicas = Gauge(
            "antwort_replicas", "Live replicas on the store, this one included.", registry=self.registry
        )
        self.takeovers = self._counter(
            "antwort_takeovers", "Unfinished responses of ended processes, by what became of them here.", "outcome"
        )
        self.container_bytes = self._counter(
            "antwort_container_bytes", "Bytes of files copied into and out of containers.", "direction"
        )

    def record_compaction(self, note: CompactionNote | UnsetType) -> None:
        """Count a compaction of this server, by whether the model wrote the summary."""
        if not isinstance(note, UnsetType):
            self.compactions.labels(note.method).inc()

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(name, help_text, labels, registry=self.registry)

    def _histogram(self, name: str, help_text: str, *labels: str) -> Histogram:
        return Histogram(name, help_text, labels, buckets=_LATENCY_BUCKETS, registry=self.registry)

    def render(self) -> tuple[bytes, str]:
        """The metrics in the Prometheus text format, and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST


# ── spans ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_tracer = trace.get_tracer("antwort")


class RequestSpan:
    """The span of one HTTP request. It is named after the route when that is known."""

    def __init__(self, method: str) -> None:
        self._method = method
        self.span: Span = _tracer.start_span(method, kind=SpanKind.SERVER, attributes={"http.request.method": method})

    def end(self, path: Callable[[], str | None], status: int) -> None:
        """End the span. `path` returns the path template of the route, without ids."""
        if self.span.is_recording():
            self.span.set_attribute("http.response.status_code", status)
            if (route := path()) is not None:
                self.span.update_name(f"{self._method} {route}")
                self.span.set_attribute("http.route", route)
            if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                _mark_failed(self.span, str(status))
        self.span.end()


def _mark_failed(span: Span, kind: str) -> None:
    span.set_status(Status(StatusCode.ERROR))
    span.set_attribute("error.type", kind)


_FINISH_REASONS = {"calls": "tool_call"}  # where OpenTelemetry's term differs


class ModelCallSpan:
    """Span and metrics of one model call. `close` must be called once, however the call ends.

    `request_attributes` are numbers and options of the request, by OpenTelemetry's names, and no content.
    """

    def __init__(
        self,
        metrics: Metrics,
        name: str,
        upstream: str,
        kind: str,
        request_attributes: Mapping[str, str | float | None],
    ) -> None:
        self._metrics = metrics
        self._name = name
        self._started_at = time.perf_counter()
        self._has_first_chunk = False
        attributes = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": kind, "gen_ai.request.model": upstream}
        self._span = _tracer.start_span(f"chat {upstream}", kind=SpanKind.CLIENT, attributes=attributes)
        if self._span.is_recording():
            self._span.set_attributes({key: value for key, value in request_attributes.items() if value is not None})

    def record_chunk(self) -> None:
        """Record a chunk of the answer; the first sets the time to first chunk."""
        if not self._has_first_chunk:
            self._has_first_chunk = True
            seconds = time.perf_counter() - self._started_at
            self._metrics.first_piece_seconds.labels(self._name).observe(seconds)
            self._span.set_attribute("gen_ai.response.time_to_first_chunk", seconds)

    def finished(self, reason: str, input_tokens: int, output_tokens: int) -> None:
        """The model finished its answer."""
        self._metrics.tokens.labels(self._name, "input").inc(input_tokens)
        self._metrics.tokens.labels(self._name, "output").inc(output_tokens)
        self._span.set_attribute("gen_ai.response.finish_reasons", [_FINISH_REASONS.get(reason, reason)])
        self._span.set_attribute("gen_ai.usage.input_tokens", input_tokens)
        self._span.set_attribute("gen_ai.usage.output_tokens", output_tokens)

    def failed(self, code: str) -> None:
        """The model failed."""
        self._metrics.faults.labels(self._name, code).inc()
        _mark_failed(self._span, code)

    def close(self) -> None:
        """End the span."""
        self._metrics.model_seconds.labels(self._name).observe(time.perf_counter() - self._started_at)
        self._span.end()


class ToolCallSpan:
    """Span of one hosted tool call. `end` must be called once."""

    def __init__(self, name: str, call_id: str) -> None:
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.id": call_id,
            "gen_ai.tool.type": "extension",  # OpenTelemetry's term for a tool that runs on the agent side
        }
        self._span = _tracer.start_span(f"execute_tool {name}", kind=SpanKind.INTERNAL, attributes=attributes)

    def end(self, status: str) -> None:
        """End the span, with the status of the item."""
        if status != "completed":
            _mark_failed(self._span, status)
        self._span.end()


class SandboxSpan:
    """Span and metric of one sandbox operation. `close` must be called once, however the operation ends.

    Only ids, tiers and numbers: no code, file names or output.
    """

    def __init__(self, metrics: Metrics, operation: SandboxOperation, container_id: str, tier: str) -> None:
        self._metrics = metrics
        self._operation = operation
        self._status = "abandoned"
        self._started_at = time.perf_counter()
        attributes = {"antwort.container.id": container_id, "antwort.container.tier": tier}
        self._span = _tracer.start_span(f"sandbox {operation}", kind=SpanKind.CLIENT, attributes=attributes)

    def ended(self, status: str, **numbers: int) -> None:
        """The operation ended regularly, with a status and counts."""
        self._status = status
        for name, number in numbers.items():
            self._span.set_attribute(f"antwort.{self._operation}.{name}", number)

    def failed(self, kind: str) -> None:
        """The sandbox or the connection to it failed."""
        self._status = kind
        _mark_failed(self._span, kind)

    def close(self) -> float:
        """End the span; returns its duration in seconds."""
        seconds = time.perf_counter() - self._started_at
        self._metrics.sandbox_seconds.labels(self._operation, self._status).observe(seconds)
        self._span.set_attribute(f"antwort.{self._operation}.status", self._status)
        self._span.end()
        return seconds
