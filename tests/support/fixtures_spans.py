"""Server program with the OpenTelemetry SDK configured, which writes spans to a file; `read_spans` reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fake_echo_provider
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

SPANS_FILE = "spans.jsonl"


def read_spans(directory: Path) -> list[dict[str, Any]]:
    """The ended spans, in order of their end."""
    return [json.loads(line) for line in (directory / SPANS_FILE).read_text(encoding="utf-8").splitlines()]


def main() -> None:
    with Path(SPANS_FILE).open("w", encoding="utf-8", buffering=1) as file:
        exporter = ConsoleSpanExporter(out=file, formatter=lambda span: str(span.to_json(indent=None)) + "\n")
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        trace.set_tracer_provider(provider)
        fake_echo_provider.main()


if __name__ == "__main__":
    main()
