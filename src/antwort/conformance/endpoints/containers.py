"""Checks of the Containers API: containers, their files, use in responses, and expiry."""

from __future__ import annotations

import time

from antwort.conformance.checks import Inconclusive, Skipped, Unsupported, behaviour
from antwort.conformance.client import Json, UploadedContent, expect_deleted, quoted
from antwort.conformance.endpoints.base import EndpointChecks, check_object, check_page, supported
from antwort.conformance.grammar import require, require_equal
from antwort.conformance.target import DOCUMENT, Once

_KEYS = "id object created_at status expires_after last_active_at memory_limit name"
_FILE_KEYS = "id object bytes container_id created_at path source"
_EXPIRY_SECONDS = 60
_EXPIRY_MARGIN = 45
_PROMPT = "Use the python tool to print the text of the one file in /mnt/data."


class ContainerChecks(EndpointChecks):
    """The Containers API."""

    area = "containers"

    @Once
    def container(self) -> Json:
        """A new container."""
        body = {"name": "conformance", "expires_after": {"anchor": "last_active_at", "minutes": 5}}
        container = supported(self.client.post("/containers", body), "POST /containers").ok()
        self.target.delete_later(f"/containers/{quoted(container['id'])}")
        return container

    @Once
    def file(self) -> Json:
        """A file that was uploaded to the container."""
        return self.client.upload(f"{self._path}/files", DOCUMENT).ok()

    @property
    def _path(self) -> str:
        return f"/containers/{quoted(self.container['id'])}"

    @property
    def _file_path(self) -> str:
        return f"{self._path}/files/{quoted(self.file['id'])}"

    @behaviour
    def created(self) -> None:
        """A creation is answered with the container, which is running."""
        check_object(self.container, "container", "cntr_", _KEYS)
        found = (self.container["name"], self.container["status"], self.container["expires_after"]["minutes"])
        require_equal(found, ("conformance", "running", 5), "`name`, `status` and `expires_after.minutes`")

    @behaviour
    def retrieved(self) -> None:
        """The container can be retrieved."""
        path = self._path
        found = self.client.get(path).ok()
        check_object(found, "container", "cntr_", _KEYS)
        require_equal(found["id"], self.container["id"], "`id`")

    @behaviour
    def listed(self) -> None:
        """The container is in the list."""
        wanted = self.container["id"]
        page = self.client.get("/containers", limit=100, order="desc").ok()
        check_page(page)
        require(wanted in [one["id"] for one in page["data"]], f"the container {wanted} in the list", page)

    @behaviour
    def file_upload(self) -> None:
        """A file can be uploaded. Its path is below /mnt/data."""
        self._check_file(self.file)
        require_equal(self.file["source"], "user", "`source`")
        size = len(DOCUMENT.content)
        require(self.file["bytes"] in (size, None), f"`bytes`: {size}, or null while it is unknown", self.file)

    @behaviour
    def file_by_id(self) -> None:
        """A file of the Files API can be put into the container."""
        _ = self.container
        file_id = self.target.file["id"]
        added = self.client.post(f"{self._path}/files", {"file_id": file_id}).ok()
        self._check_file(added)
        expect_deleted(
            self.client.delete(f"{self._path}/files/{quoted(added['id'])}"), "container.file.deleted", added["id"]
        )

    @behaviour
    def file_list(self) -> None:
        """The file is listed, and can be retrieved."""
        wanted = self.file["id"]
        page = self.client.get(f"{self._path}/files").ok()
        check_page(page)
        require(wanted in [one["id"] for one in page["data"]], f"the file {wanted} in the list", page)
        self._check_file(self.client.get(self._file_path).ok())

    @behaviour
    def file_content(self) -> None:
        """The content is that of the upload."""
        reply = self.client.get(f"{self._file_path}/content")
        require_equal(reply.status, 200, "the status")
        require_equal(reply.text, DOCUMENT.content.decode(), "the content")

    @behaviour
    def refused(self) -> None:
        """A container without a name, or with too long an expiry, is a 400."""
        _ = self.container
        self.client.post("/containers", {}).error(400)
        late = {"name": "conformance", "expires_after": {"anchor": "last_active_at", "minutes": 100_000}}
        self.client.post("/containers", late).error(400)

    @behaviour
    def unknown_id(self) -> None:
        """An unknown container, or file, is a 404."""
        path = self._path
        self.client.get("/containers/cntr_conformance_unknown").error(404)
        self.client.get(f"{path}/files/cfile_conformance_unknown").error(404)

    @behaviour
    def in_response(self) -> None:
        """The code interpreter runs in this container, and reads its file."""
        _ = self.file
        response = self._run_code(self.container["id"])
        calls = [item for item in response["output"] if item["type"] == "code_interpreter_call"]
        if not calls:
            raise Inconclusive("the model did not call the tool")
        require_equal({call["container_id"] for call in calls}, {self.container["id"]}, "the container of the calls")
        logs = "".join(part.get("logs", "") for call in calls for part in call["outputs"] or ())
        require("marigold" in logs or "rror" in logs, "the text of the file in the outputs", logs)

    @behaviour
    def file_deleted(self) -> None:
        """A deleted file is gone."""
        path, identifier = self._file_path, self.file["id"]
        expect_deleted(self.client.delete(path), "container.file.deleted", identifier)
        self.client.get(path).error(404)

    @behaviour
    def deleted(self) -> None:
        """A deleted container is gone, and a response that names it is a 400 or a 404."""
        path, identifier = self._path, self.container["id"]
        expect_deleted(self.client.delete(path), "container.deleted", identifier)
        self.client.get(path).error(404)
        tool = {"type": "code_interpreter", "container": identifier}
        self.target.create(self.target.request(_PROMPT, tools=[tool])).error(400, 404)

    @behaviour
    def expired(self) -> None:
        """An expired container can still be retrieved, and a response that names it is a 400."""
        if not self.target.is_slow_allowed:
            raise Skipped("it takes more than a minute; run it with --slow")
        body = {"name": "conformance", "expires_after": {"anchor": "last_active_at", "minutes": 1}}
        container = supported(self.client.post("/containers", body), "POST /containers").ok()
        path = f"/containers/{quoted(container['id'])}"
        self.target.delete_later(path)
        self.client.upload(f"{path}/files", UploadedContent("a.txt", b"1")).ok()
        deadline = time.monotonic() + _EXPIRY_SECONDS + _EXPIRY_MARGIN
        self.client.sleep(_EXPIRY_SECONDS + 5)
        tool = {"type": "code_interpreter", "container": container["id"]}
        reply = self.target.create(self.target.request(_PROMPT, tools=[tool]))
        while reply.status == 200 and time.monotonic() < deadline:
            self.client.sleep(_EXPIRY_SECONDS + 5)
            reply = self.target.create(self.target.request(_PROMPT, tools=[tool]))
        error = reply.error(400)
        require("expired" in error["message"], "an error that says that the container is expired", error)
        require_equal(self.client.get(path).ok()["status"], "expired", "the status of the container")

    def _check_file(self, file: Json) -> None:
        check_object(file, "container.file", "cfile_", _FILE_KEYS)
        require_equal(file["container_id"], self.container["id"], "`container_id`")
        require(file["path"].startswith("/mnt/data/"), "a path below /mnt/data", file["path"])

    def _run_code(self, container_id: str) -> Json:
        tool = {"type": "code_interpreter", "container": container_id}
        include = ["code_interpreter_call.outputs"]
        choice = {"type": "code_interpreter"}
        reply = self.target.create(self.target.request(_PROMPT, tools=[tool], include=include, tool_choice=choice))
        if reply.status == 400 and "code_interpreter" in reply.text:
            raise Unsupported(reply.error(400)["message"])
        return reply.ok()
