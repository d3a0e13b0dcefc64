"""Checks of refusals: the envelope, codes and parameters of errors, and 404s of unknown ids."""

from __future__ import annotations

from typing import Any

from antwort.conformance.checks import Skipped, behaviour
from antwort.conformance.client import quoted
from antwort.conformance.endpoints.base import EndpointChecks, supported
from antwort.conformance.grammar import require, require_equal

_PROMPT = "Reply with one word: hello."
_LONG = " ".join(f"Box {number} holds {number * 7} packets of tea." for number in range(40))
_UNKNOWN = "resp_conformance_unknown"


class ErrorChecks(EndpointChecks):
    """Refusals. None of these requests reaches a model."""

    area = "errors"

    @behaviour
    def invalid_json(self) -> None:
        """A body that is not JSON is a 400."""
        error = self.client.send("POST", "/responses", raw=b'{"model": ').error(400)
        require_equal(error["type"], "invalid_request_error", "`type` of the error")

    @behaviour
    def wrong_type(self) -> None:
        """A value of the wrong type is a 400 that names the parameter."""
        self._refused("stream", "yes")
        self._refused("max_output_tokens", "many")

    @behaviour
    def wrong_value(self) -> None:
        """A value that is out of range is a 400 that names the parameter."""
        self._refused("temperature", 99)

    @behaviour
    def unknown_parameter(self) -> None:
        """An unknown parameter is a 400 that names it."""
        error = self._refused("conformance_unknown", 1)
        require_equal(error["code"], "unknown_parameter", "`code` of the error")

    @behaviour
    def unknown_model(self) -> None:
        """An unknown model is a 400 or a 404, unless the server answers for every name."""
        reply = self.target.create({"model": "conformance-unknown-model", "input": _PROMPT, "max_output_tokens": 16})
        if reply.status == 200:
            raise Skipped("the server has a model for unknown names")
        require_equal(reply.error(400, 404)["code"], "model_not_found", "`code` of the error")

    @behaviour
    def unknown_response(self) -> None:
        """Every operation on an unknown response is a 404."""
        self.client.get(f"/responses/{_UNKNOWN}").error(404)
        self.client.get(f"/responses/{_UNKNOWN}/input_items").error(404)
        self.client.send("POST", f"/responses/{_UNKNOWN}/cancel").error(404)

    @behaviour
    def unknown_previous(self) -> None:
        """An unknown previous response is a 400 that names the parameter."""
        error = self._refused("previous_response_id", _UNKNOWN)
        require_equal(error["code"], "previous_response_not_found", "`code` of the error")

    @behaviour
    def unknown_path(self) -> None:
        """An unknown path is a 404 in the envelope."""
        self.client.get("/conformance/unknown").error(404)

    @behaviour
    def limit(self) -> None:
        """A limit that is too large is a 400."""
        error = supported(self.client.get("/containers", limit=101), "GET /containers").error(400)
        require("limit" in f"{error['param']} {error['message']}", "an error that names the limit", error)

    @behaviour
    def wrong_key(self) -> None:
        """A wrong key is a 401."""
        if not self.client.key:
            raise Skipped("the server is used without a key")
        client = self.client.with_key("sk-conformance-wrong")
        try:
            error = client.get("/models").error(401)
        finally:
            self.client.last = client.last
            client.close()
        require_equal(error["code"], "invalid_api_key", "`code` of the error")

    @behaviour
    def request_id(self) -> None:
        """Every answer has the header x-request-id."""
        for path in ("/models", f"/responses/{_UNKNOWN}"):
            reply = self.client.get(path)
            require(reply.headers.get("x-request-id"), "the header x-request-id", sorted(reply.headers))

    def _refused(self, name: str, value: Any) -> dict[str, Any]:
        error = self.target.create(self.target.request(_PROMPT, **{name: value})).error(400)
        require_equal(error["type"], "invalid_request_error", "`type` of the error")
        require(str(error["param"]).startswith(name), f"`param` names {name}", error)
        return error


class ResponseChecks(EndpointChecks):
    """Operations on stored responses."""

    area = "responses"

    @behaviour
    def metadata(self) -> None:
        """Metadata are stored and returned."""
        response = self.target.create(self.target.request(_PROMPT, metadata={"a": "1"})).ok()
        require_equal(response["metadata"], {"a": "1"}, "`metadata` of the response")

    @behaviour
    def usage(self) -> None:
        """The usage adds up."""
        usage = self.target.create(self.target.request(_PROMPT)).ok()["usage"]
        total = usage["input_tokens"] + usage["output_tokens"]
        require_equal(usage["total_tokens"], total, "`total_tokens`, the sum of the two others")

    @behaviour
    def instructions(self) -> None:
        """Instructions are returned, and do not continue in the next response."""
        first = self.target.create(self.target.request(_PROMPT, instructions="Be brief.")).ok()
        require_equal(first["instructions"], "Be brief.", "`instructions` of the response")
        second = self.target.create(self.target.request(_PROMPT, previous_response_id=first["id"])).ok()
        require_equal(second["instructions"], None, "`instructions` of the next response")

    @behaviour
    def continued(self) -> None:
        """A response that continues another one has its input, too."""
        first = self.target.create(self.target.request(f"{_LONG} {_PROMPT}")).ok()
        second = self.target.create(self.target.request(_PROMPT, previous_response_id=first["id"])).ok()
        before, after = first["usage"]["input_tokens"], second["usage"]["input_tokens"]
        require(after > before, f"more than the {before} input tokens of the previous response", after)

    @behaviour
    def incomplete(self) -> None:
        """`max_output_tokens` ends a response as incomplete, unless it was short enough."""
        body = self.target.request("Count from 1 to 500, with commas.", max_output_tokens=16)
        response = self.target.create(body).ok()
        if response["status"] == "completed":
            raise Skipped("the model ended before max_output_tokens")
        require_equal(response["status"], "incomplete", "the status of the response")
        require_equal(response["incomplete_details"], {"reason": "max_output_tokens"}, "`incomplete_details`")

    @behaviour
    def cancelled(self) -> None:
        """Only a response in the background can be cancelled."""
        response = self.target.create(self.target.request(_PROMPT)).ok()
        self.client.send("POST", f"/responses/{quoted(response['id'])}/cancel").error(400)
        begun = self.target.create(self.target.request("Count from 1 to 500.", background=True)).ok()
        path = f"/responses/{quoted(begun['id'])}"
        reply = self.client.send("POST", f"{path}/cancel")
        if reply.status != 400:  # it may have ended meanwhile
            require(reply.ok()["status"] in ("cancelled", "completed"), "the status cancelled or completed", reply.text)
        found = self.target.poll(path, lambda response: response["status"] not in ("queued", "in_progress"))
        require(found["status"] in ("cancelled", "completed"), "the status cancelled or completed", found["status"])

    @behaviour
    def deleted(self) -> None:
        """A deleted response is gone."""
        response = self.target.create(self.target.request(_PROMPT)).ok()
        path = f"/responses/{quoted(response['id'])}"
        deleted = self.client.delete(path).ok()
        require(deleted.get("deleted") is True and deleted.get("id") == response["id"], "the deleted id", deleted)
        self.client.get(path).error(404)
        self.target.create(self.target.request(_PROMPT, previous_response_id=response["id"])).error(400)
