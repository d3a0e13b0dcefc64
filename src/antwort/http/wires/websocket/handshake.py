"""Handler of the WebSocket of /v1/responses."""

from __future__ import annotations

from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from antwort.auth import Caller
from antwort.http.services import Services
from antwort.http.wires.websocket.connection import WebSocketConnection
from antwort.http.wires.websocket.messages import PATH


async def connect(websocket: WebSocket) -> None:
    """Serve a connection whose caller `RequestMiddleware` has authenticated."""
    services: Services = websocket.app.state.services
    caller: Caller = websocket.scope["antwort.caller"]
    with services.websockets.admit(caller.tenant):
        await websocket.accept()
        await WebSocketConnection(services, caller.key_id, websocket.receive, websocket.send).serve()


route = WebSocketRoute(PATH, connect)
