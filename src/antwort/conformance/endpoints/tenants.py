"""Checks that a second key sees nothing of the first: needs the key of another tenant."""

from __future__ import annotations

from antwort.conformance.checks import Skipped, behaviour
from antwort.conformance.client import ApiClient, Json, Reply, quoted
from antwort.conformance.endpoints.base import EndpointChecks
from antwort.conformance.grammar import require
from antwort.conformance.target import ABSENT, DOCUMENT, Once, message

_PROMPT = "Reply with one word: hello."


class TenantChecks(EndpointChecks):
    """Objects of one tenant are unknown to another."""

    area = "tenants"

    @property
    def _other(self) -> ApiClient:
        if self.target.other is None:
            raise Skipped("name the key of another tenant with --other-key-env")
        return self.target.other

    @Once
    def response(self) -> Json:
        """A response of the first tenant."""
        return self.target.create(self.target.request(_PROMPT)).ok()

    @Once
    def container(self) -> Json:
        """A container of the first tenant."""
        return self._created(self.client.post("/containers", {"name": "conformance"}), "/containers")

    @behaviour
    def chain(self) -> None:
        """A response cannot be continued."""
        other = self._other
        self._hidden(
            other.post("/responses", self.target.request(_PROMPT, previous_response_id=self.response["id"])), 400
        )

    @behaviour
    def responses(self) -> None:
        """A response cannot be retrieved, listed, cancelled or deleted."""
        other = self._other
        path = f"/responses/{quoted(self.response['id'])}"
        for reply in (other.get(path), other.get(f"{path}/input_items"), other.delete(path)):
            self._hidden(reply)
        self._hidden(other.send("POST", f"{path}/cancel"))
        self.client.get(path).ok()

    @behaviour
    def conversations(self) -> None:
        """A conversation cannot be retrieved, changed, used or deleted."""
        other = self._other
        created = self._created(self.client.post("/conversations", {"items": [message("hello")]}), "/conversations")
        path = f"/conversations/{quoted(created['id'])}"
        for reply in (other.get(path), other.get(f"{path}/items"), other.post(path, {"metadata": {}})):
            self._hidden(reply)
        self._hidden(other.delete(path))
        self._hidden(other.post("/responses", self.target.request(_PROMPT, conversation=created["id"])), 400, 404)

    @behaviour
    def files(self) -> None:
        """A file cannot be retrieved, read, listed, used or deleted."""
        other = self._other
        created = self._created(self.client.upload("/files", DOCUMENT, purpose="user_data"), "/files")
        path = f"/files/{quoted(created['id'])}"
        for reply in (other.get(path), other.get(f"{path}/content"), other.delete(path)):
            self._hidden(reply)
        self._not_listed(other.get("/files", limit=100).ok(), created)
        part = {"type": "input_file", "file_id": created["id"]}
        items = [{"type": "message", "role": "user", "content": [part]}]
        self._hidden(other.post("/responses", self.target.request(items)), 400, 404)

    @behaviour
    def container_in_use(self) -> None:
        """A response cannot name the container."""
        other = self._other
        tool = {"type": "code_interpreter", "container": self.container["id"]}
        self._hidden(other.post("/responses", self.target.request(_PROMPT, tools=[tool])), 400, 404)

    @behaviour
    def containers(self) -> None:
        """A container cannot be retrieved, listed, read, written or deleted."""
        other = self._other
        path = f"/containers/{quoted(self.container['id'])}"
        for reply in (other.get(path), other.get(f"{path}/files"), other.delete(path)):
            self._hidden(reply)
        self._hidden(other.upload(f"{path}/files", DOCUMENT))
        self._not_listed(other.get("/containers", limit=100).ok(), self.container)

    @behaviour
    def compaction(self) -> None:
        """A compaction item cannot be opened."""
        other = self._other
        body = {"model": self.target.model, "input": [message(_PROMPT)]}
        compacted = self._created(self.client.post("/responses/compact", body))
        window = [*compacted["output"], message(_PROMPT)]
        self._hidden(other.post("/responses", self.target.request(window)), 400)

    def _created(self, reply: Reply, path: str = "") -> Json:
        if reply.status in ABSENT:
            raise Skipped("the server does not have the endpoint")
        created = reply.ok()
        if path:
            self.target.delete_later(f"{path}/{quoted(created['id'])}")
        return created

    def _hidden(self, reply: Reply, *statuses: int) -> None:
        """The other tenant gets the error of an unknown id."""
        self.client.last = reply.exchange
        reply.error(*(statuses or (404,)))

    def _not_listed(self, page: Json, created: Json) -> None:
        ids = [one["id"] for one in page["data"]]
        require(created["id"] not in ids, f"a list without {created['id']}", ids)
