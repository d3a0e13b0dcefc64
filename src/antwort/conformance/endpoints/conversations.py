"""Checks of the Conversations API, and of responses that belong to a conversation."""

from __future__ import annotations

from antwort.conformance.checks import behaviour
from antwort.conformance.client import Json, expect_deleted, quoted
from antwort.conformance.endpoints.base import EndpointChecks, check_object, check_page, supported
from antwort.conformance.grammar import check_response_keys, require, require_equal
from antwort.conformance.target import Once, message

_KEYS = "id object created_at metadata"
_PROMPT = "Reply with one word: hello."


class ConversationChecks(EndpointChecks):
    """The Conversations API."""

    area = "conversations"

    @Once
    def conversation(self) -> Json:
        """A conversation with one item."""
        body = {"metadata": {"topic": "conformance"}, "items": [message("My name is Ada.")]}
        conversation = supported(self.client.post("/conversations", body), "POST /conversations").ok()
        self.target.delete_later(f"/conversations/{quoted(conversation['id'])}")
        return conversation

    @property
    def _path(self) -> str:
        return f"/conversations/{quoted(self.conversation['id'])}"

    @behaviour
    def created(self) -> None:
        """A creation is answered with the conversation."""
        check_object(self.conversation, "conversation", "conv_", _KEYS)
        require_equal(self.conversation["metadata"], {"topic": "conformance"}, "`metadata`")

    @behaviour
    def retrieved(self) -> None:
        """The conversation can be retrieved."""
        path = self._path
        found = self.client.get(path).ok()
        check_object(found, "conversation", "conv_", _KEYS)
        require_equal(found, self.conversation, "the conversation, as it was created")

    @behaviour
    def updated(self) -> None:
        """The metadata can be replaced."""
        path = self._path
        updated = self.client.post(path, {"metadata": {"topic": "changed"}}).ok()
        require_equal(updated["metadata"], {"topic": "changed"}, "`metadata`")

    @behaviour
    def items(self) -> None:
        """Items can be added, listed, retrieved and deleted."""
        path = f"{self._path}/items"
        added = self.client.post(path, {"items": [message("I live in Berlin.")]}).ok()
        check_page(added)
        require_equal(len(added["data"]), 1, "the number of added items")
        page = self.client.get(path, order="asc").ok()
        check_page(page)
        require_equal(len(page["data"]), 2, "the number of items")
        require_equal(page["data"][1], added["data"][0], "the second item of the list")
        one = f"{path}/{quoted(added['data'][0]['id'])}"
        require_equal(self.client.get(one).ok(), added["data"][0], "the item, as it was added")
        require_equal(self.client.delete(one).ok().get("object"), "conversation", "`object` after a deletion")
        self.client.get(one).error(404)

    @behaviour
    def in_response(self) -> None:
        """A response adds its input and its output to the conversation."""
        path = self._path
        before = self.client.get(f"{path}/items").ok()["data"]
        response = self.target.create(self.target.request(_PROMPT, conversation=self.conversation["id"])).ok()
        check_response_keys(response)
        require_equal(response.get("conversation"), {"id": self.conversation["id"]}, "`conversation` of the response")
        added = self.client.get(f"{path}/items", order="asc").ok()["data"][len(before) :]
        require_equal(len(added), 1 + len(response["output"]), "the number of added items")
        roles = (added[0].get("role"), added[-1].get("role"))
        require_equal(roles, ("user", "assistant"), "the roles of the first and the last added item")

    @behaviour
    def refused(self) -> None:
        """A conversation and `previous_response_id` exclude each other; more than 20 items are too many."""
        identifier = self.conversation["id"]
        both = self.target.request(_PROMPT, conversation=identifier, previous_response_id="resp_conformance")
        self.target.create(both).error(400)
        self.client.post(f"{self._path}/items", {"items": [message("one of many")] * 21}).error(400)

    @behaviour
    def unknown_id(self) -> None:
        """An unknown conversation is a 404."""
        _ = self.conversation
        self.client.get("/conversations/conv_conformance_unknown").error(404)
        request = self.target.request(_PROMPT, conversation="conv_conformance_unknown")
        self.target.create(request).error(400, 404)

    @behaviour
    def deleted(self) -> None:
        """A deleted conversation is gone."""
        path, identifier = self._path, self.conversation["id"]
        expect_deleted(self.client.delete(path), "conversation.deleted", identifier)
        reply = self.client.get(path)
        require(reply.status == 404, "status 404 after the deletion", reply.status)
