"""What the server tells of itself: log lines, metrics, spans, and who changed what. Never what anybody said.

Lines carry the request's id and no content. An exception is told by its type and where it
was, without its message and without paths of this machine: a message may quote a prompt or
a key. Metrics have a registry of their own. Spans follow OpenTelemetry's conventions for
generative AI and cost nothing unless its SDK is installed and set up.
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
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

_LATENCIES = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

EventDict: TypeAlias = MutableMapping[str, Any]
Excused: TypeAlias = tuple[object, BaseException | None, object]


# ── lines ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def set_up_logging(level: str = "info", form: Literal["auto", "json", "text"] = "auto") -> None:
    """Send our own lines and those of libraries to stderr, in one form."""
    as_text = form == "text" or (form == "auto" and sys.stderr.isatty())
    before: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        told_without_content,
    ]
    structlog.configure(
        processors=[*before, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    renderer = structlog.dev.ConsoleRenderer() if as_text else structlog.processors.JSONRenderer()
    remove = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=before, processors=[remove, renderer]))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for chatty in ("httpx2", "httpcore2", "uvicorn.access", "uvicorn.error", "asyncio"):
        logging.getLogger(chatty).setLevel("WARNING")


def told_without_content(logger: object, method: str, event: EventDict) -> EventDict:
    """Replace an exception by its type and its places in our code and others'."""
    del logger, method
    excused: object = event.pop("exc_info", None)
    if excused is True:
        excused = sys.exc_info()
    error = cast("Excused", excused)[1] if isinstance(excused, tuple) else excused
    if isinstance(error, BaseException):
        event["exception"] = type(error).__name__
        event["where"] = [  # walked, not extracted: that would read the source, and the loop would wait
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
    """Say who changed what; who, and in which request, is bound to the request already."""
    _audit.info("audit", action=action, object_id=identifier, **more)


# ── metrics ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Metrics:
    """Numbers for Prometheus. No label holds anything that a caller chooses."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "antwort_http_requests", "Requests answered.", ["method", "route", "status"], registry=self.registry
        )
        self.request_seconds = Histogram(
            "antwort_http_request_seconds",
            "From a request to the end of its answer.",
            ["route"],
            buckets=_LATENCIES,
            registry=self.registry,
        )
        self.responses = Counter("antwort_responses", "Responses ended.", ["model", "status"], registry=self.registry)
        self.running = Gauge("antwort_responses_running", "Responses under way.", registry=self.registry)
        self.model_seconds = Histogram(
            "antwort_model_seconds",
            "From asking a model to the end of its answer.",
            ["model"],
            buckets=_LATENCIES,
            registry=self.registry,
        )
        self.first_piece_seconds = Histogram(
            "antwort_model_first_piece_seconds",
            "From asking a model to the first piece of its answer.",
            ["model"],
            buckets=_LATENCIES,
            registry=self.registry,
        )
        self.tokens = Counter(
            "antwort_tokens", "Tokens, as models count them.", ["model", "kind"], registry=self.registry
        )
        self.faults = Counter("antwort_model_faults", "Models that failed.", ["model", "code"], registry=self.registry)
        self.containers = Counter(
            "antwort_containers",
            "Containers that were created, deleted, expired, or lost their sandbox.",
            ["event", "tier"],
            registry=self.registry,
        )
        self.sandboxes = Gauge("antwort_sandboxes", "Sandboxes that containers hold.", registry=self.registry)
        self.sandbox_seconds = Histogram(
            "antwort_sandbox_seconds",
            "How long it took to get a sandbox, or to run code in one.",
            ["work", "status"],
            buckets=_LATENCIES,
            registry=self.registry,
        )
        self.container_bytes = Counter(
            "antwort_container_bytes",
            "Bytes of files on their way into containers and out of them.",
            ["direction"],
            registry=self.registry,
        )

    def page(self) -> tuple[bytes, str]:
        """All of it as text, and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST


# ── spans ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_tracer = trace.get_tracer("antwort")


class RequestSpan:
    """The span of one request to us. Its name is completed when the route is known."""

    def __init__(self, method: str) -> None:
        self._method = method
        self.span: Span = _tracer.start_span(method, kind=SpanKind.SERVER, attributes={"http.request.method": method})

    def end(self, path: Callable[[], str | None], status: int) -> None:
        """It is answered. `path` gives the route's path, with names in the place of ids."""
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


_FINISHED = {"calls": "tool_call"}  # where OpenTelemetry has a word of its own


class ModelCall:
    """One request to a model, measured: a span and its metrics. To be ended once, in whichever way it ends.

    `asked` is what of the request may be told: numbers and choices, by the conventions' names, and no content.
    """

    def __init__(
        self, metrics: Metrics, name: str, upstream: str, kind: str, asked: Mapping[str, str | float | None]
    ) -> None:
        self._metrics = metrics
        self._name = name
        self._began = time.perf_counter()
        self._begun = False
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": kind,
            "gen_ai.request.model": upstream,
        }
        self._span = _tracer.start_span(f"chat {upstream}", kind=SpanKind.CLIENT, attributes=attributes)
        if self._span.is_recording():
            self._span.set_attributes({key: value for key, value in asked.items() if value is not None})

    def piece(self) -> None:
        """Something has come; the first time counts."""
        if not self._begun:
            self._begun = True
            seconds = time.perf_counter() - self._began
            self._metrics.first_piece_seconds.labels(self._name).observe(seconds)
            self._span.set_attribute("gen_ai.response.time_to_first_chunk", seconds)

    def finished(self, reason: str, input_tokens: int, output_tokens: int) -> None:
        """The answer is whole."""
        self._metrics.tokens.labels(self._name, "input").inc(input_tokens)
        self._metrics.tokens.labels(self._name, "output").inc(output_tokens)
        self._span.set_attribute("gen_ai.response.finish_reasons", [_FINISHED.get(reason, reason)])
        self._span.set_attribute("gen_ai.usage.input_tokens", input_tokens)
        self._span.set_attribute("gen_ai.usage.output_tokens", output_tokens)

    def failed(self, code: str) -> None:
        """The model failed."""
        self._metrics.faults.labels(self._name, code).inc()
        _mark_failed(self._span, code)

    def close(self) -> None:
        """It is over."""
        self._metrics.model_seconds.labels(self._name).observe(time.perf_counter() - self._began)
        self._span.end()


class ToolCall:
    """One call of a tool that is run here, as a span. To be ended once."""

    def __init__(self, name: str, call_id: str) -> None:
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.id": call_id,
            "gen_ai.tool.type": "extension",  # run on the side of the agent, as OpenTelemetry calls it
        }
        self._span = _tracer.start_span(f"execute_tool {name}", kind=SpanKind.INTERNAL, attributes=attributes)

    def end(self, status: str) -> None:
        """It is over, with the status of its item."""
        if status != "completed":
            _mark_failed(self._span, status)
        self._span.end()


class SandboxWork:
    """Something that a sandbox does for a container, measured: a span and a metric. To be closed once, however it ends.

    Only ids, tiers and numbers: never code, names of files, or what came of it.
    """

    def __init__(self, metrics: Metrics, work: Literal["acquire", "execute"], container_id: str, tier: str) -> None:
        self._metrics = metrics
        self._work = work
        self._status = "abandoned"
        self._began = time.perf_counter()
        attributes = {"antwort.container.id": container_id, "antwort.container.tier": tier}
        self._span = _tracer.start_span(f"sandbox {work}", kind=SpanKind.CLIENT, attributes=attributes)

    def ended(self, status: str, **numbers: int) -> None:
        """It came to an end of its own: how, and what can be counted of it."""
        self._status = status
        for name, number in numbers.items():
            self._span.set_attribute(f"antwort.{self._work}.{name}", number)

    def failed(self, kind: str) -> None:
        """The sandbox, or the way to it, failed."""
        self._status = kind
        self._span.set_status(Status(StatusCode.ERROR))
        self._span.set_attribute("error.type", kind)

    def close(self) -> float:
        """It is over; how many seconds it took."""
        seconds = time.perf_counter() - self._began
        self._metrics.sandbox_seconds.labels(self._work, self._status).observe(seconds)
        self._span.set_attribute(f"antwort.{self._work}.status", self._status)
        self._span.end()
        return seconds
