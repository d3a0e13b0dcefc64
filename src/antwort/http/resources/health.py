"""Handlers of /healthz (liveness), /readyz (readiness) and /metrics (Prometheus)."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from antwort.api.errors import unavailable
from antwort.api.objects import Health
from antwort.http.bodies import json_answer
from antwort.http.openapi import ApiRoute, Operation
from antwort.http.services import services_of


async def healthz(request: Request) -> HttpResponse:
    """Liveness: the process answers."""
    del request
    return json_answer(Health(status="ok"))


async def readyz(request: Request) -> HttpResponse:
    """Readiness: the server is not shutting down, its store is writable, and it is a member of its replicas."""
    services = services_of(request)
    if services.stopping:
        raise unavailable("The server is shutting down.")
    await services.check_ready()
    return json_answer(Health(status="ready"))


async def metrics(request: Request) -> HttpResponse:
    """Prometheus metrics. Requires an API key."""
    body, content_type = services_of(request).metrics.render()
    return HttpResponse(body, headers={"content-type": content_type})


routes = [
    ApiRoute("GET", "/healthz", healthz, Operation("healthz", returns=Health, public=True)),
    ApiRoute("GET", "/readyz", readyz, Operation("readyz", returns=Health, public=True)),
    ApiRoute("GET", "/metrics", metrics, Operation("metrics", content_types=("text/plain",))),
]
