"""Whether it lives, whether it can work, and how it does: `/healthz`, `/readyz`, `/metrics`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response as Answer
from starlette.routing import Route

from antwort.api.errors import unavailable
from antwort.api.objects import Health
from antwort.http.bodies import json_answer
from antwort.http.services import services_of


async def healthz(request: Request) -> Answer:
    """The process answers."""
    del request
    return json_answer(Health(status="ok"))


async def readyz(request: Request) -> Answer:
    """It can take requests: it is not about to stop, and its store can be written to."""
    services = services_of(request)
    if services.stopping:
        raise unavailable("The server is about to stop.")
    await services.trial.of(services.store.check_writable)
    return json_answer(Health(status="ready"))


async def metrics(request: Request) -> Answer:
    """For Prometheus. Needs a key like everything else."""
    page, kind = services_of(request).metrics.page()
    return Answer(page, headers={"content-type": kind})


routes = [
    Route("/healthz", healthz, methods=["GET"]),
    Route("/readyz", readyz, methods=["GET"]),
    Route("/metrics", metrics, methods=["GET"]),
]
