"""Bridge from OpenSandbox's protocol to `antwort sandbox`, so that LiteLLM runs code in the same sandbox.

The minimum that LiteLLM's client needs: create a sandbox, return its endpoint, run code in it, delete it. It runs as a
process of its own, gets the URL of the sandbox server as argument, and prints its port.
"""

from __future__ import annotations

import json
import socket
import sys

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


def make_app(sandbox: httpx2.AsyncClient, own: str) -> Starlette:
    """The application; `own` is its own address."""

    async def create(_: Request) -> Response:
        made = (await sandbox.post("/sessions", json={"memory": "1g"})).raise_for_status().json()
        return JSONResponse({"id": made["id"], "status": {"state": "Running"}})

    async def endpoint(request: Request) -> Response:
        return JSONResponse({"endpoint": f"{own}/{request.path_params['name']}"})

    async def code(request: Request) -> Response:
        body = await request.json()
        path = f"/sessions/{request.path_params['name']}/execute"
        result = (await sandbox.post(path, json={"code": body["code"]})).raise_for_status().json()
        events = [{"type": "stdout", "text": result["stdout"]}, {"type": "stderr", "text": result["stderr"]}]
        return Response("".join(f"data: {json.dumps(event)}\n\n" for event in events), media_type="text/event-stream")

    async def delete(request: Request) -> Response:
        await sandbox.delete(f"/sessions/{request.path_params['name']}")
        return Response(status_code=204)

    return Starlette(
        routes=[
            Route("/sandboxes", create, methods=["POST"]),
            Route("/sandboxes/{name}/endpoints/{port}", endpoint),
            Route("/sandboxes/{name}", delete, methods=["DELETE"]),
            Route("/{name}/code", code, methods=["POST"]),
        ]
    )


def main() -> None:
    """Serve until killed."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        port = listener.getsockname()[1]
        client = httpx2.AsyncClient(base_url=sys.argv[1], timeout=60, limits=httpx2.Limits(max_connections=None))
        app = make_app(client, f"127.0.0.1:{port}")
        print(port, flush=True)
        config = uvicorn.Config(app, loop="uvloop", http="httptools", log_level="warning", lifespan="off")
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
