"""Approvals of calls, over several responses.

A call that needs an approval becomes an `mcp_approval_request`, and the response ends. A later request answers it with
an `mcp_approval_response`. The id of an approval request contains a signature of the tenant, the server, the tool and
the arguments: so an approval is valid for a request that this server made for that tenant, with these arguments,
whether the history is stored or sent by the client. Within a history, an approval request can be used once.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec

from antwort.api.errors import invalid
from antwort.api.items import Item
from antwort.engine.declared.approvals import open_approvals
from antwort.engine.ports import ToolContext
from antwort.sealing import Sealer

PREFIX: Final = "mcpr_"
_NONCE_CHARS: Final = 24


class Approval(NamedTuple):
    """A call that the client has approved."""

    request_id: str
    name: str
    arguments: str


class Approvals:
    """Issues approval requests, and verifies the answers to them."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def new_request(self, tenant: str, label: str, name: str, arguments: str) -> dict[str, Any]:
        """An `mcp_approval_request` item."""
        nonce = secrets.token_hex(_NONCE_CHARS // 2)
        signature = self._sealer.sign(tenant, _message(nonce, label, name, arguments))
        return {
            "id": f"{PREFIX}{nonce}{signature}",
            "type": "mcp_approval_request",
            "arguments": arguments,
            "name": name,
            "server_label": label,
        }

    def approved(self, context: ToolContext, label: str) -> list[Approval]:
        """The calls of a server that this request approves and that did not run yet.

        `ApiError` 400 for an answer to a request of others, or to one that was answered before. That the history has
        the request is checked already.
        """
        answers = [item for _, item in open_approvals(context.given)]
        if not answers:
            return []
        are_open = {id(item) for item in answers}
        requests = {item.raw.get("id"): item.raw for item in context.history if item.type == "mcp_approval_request"}
        answered = _answered(item for item in context.history if id(item) not in are_open)
        ran, made = _ran(context.history), _ran(context.made)
        approved: list[Approval] = []
        for answer in (item.raw for item in answers):
            request_id = answer["approval_request_id"]
            request = requests.get(request_id)
            if request is None or request.get("server_label") != label:
                continue
            if not self._is_own(context.owner.tenant, request):
                message = f"Approval request '{request_id}' was not made by this server for this call."
                raise invalid(message, param="input")
            if request_id in answered or (request_id in ran and request_id not in made):
                raise invalid(f"Approval request '{request_id}' was answered already.", param="input")
            answered.add(request_id)
            if answer["approve"] and request_id not in made:
                approved.append(Approval(request_id, request["name"], request["arguments"]))
        return approved

    def _is_own(self, tenant: str, request: dict[str, Any]) -> bool:
        identifier = str(request["id"]).removeprefix(PREFIX)
        nonce, signature = identifier[:_NONCE_CHARS], identifier[_NONCE_CHARS:]
        message = _message(nonce, request["server_label"], request["name"], request["arguments"])
        return self._sealer.is_signed(tenant, message, signature)


def _message(*parts: str) -> bytes:
    return msgspec.json.encode(["mcp approval", *parts])


def _answered(history: Iterable[Item]) -> set[object]:
    return {item.raw.get("approval_request_id") for item in history if item.type == "mcp_approval_response"}


def _ran(history: Iterable[Item]) -> set[object]:
    """The approval requests whose calls ran."""
    return {item.raw.get("approval_request_id") for item in history if item.type == "mcp_call"}
