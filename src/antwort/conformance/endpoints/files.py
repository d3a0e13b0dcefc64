"""Checks of the Files API: upload, retrieve, list, content, delete, unknown ids."""

from __future__ import annotations

from antwort.conformance.checks import Unsupported, behaviour
from antwort.conformance.client import Json, UploadedContent, expect_deleted, quoted
from antwort.conformance.endpoints.base import EndpointChecks, check_object, check_page, supported
from antwort.conformance.grammar import require, require_equal
from antwort.conformance.target import Once

_CONTENT = bytes(range(256)) * 8 + "Grüße".encode()


class FileChecks(EndpointChecks):
    """The Files API."""

    area = "files"

    @Once
    def file(self) -> Json:
        """An uploaded file of binary content."""
        reply = self.client.upload("/files", UploadedContent("conformance.bin", _CONTENT), purpose="user_data")
        file = supported(reply, "POST /files").ok()
        self.target.delete_later(f"/files/{quoted(file['id'])}")
        return file

    @property
    def _path(self) -> str:
        return f"/files/{quoted(self.file['id'])}"

    @behaviour
    def created(self) -> None:
        """An upload is answered with the file."""
        check_object(self.file, "file", "file-", "id bytes created_at filename purpose status")
        found = (self.file["bytes"], self.file["filename"], self.file["purpose"])
        require_equal(found, (len(_CONTENT), "conformance.bin", "user_data"), "`bytes`, `filename` and `purpose`")

    @behaviour
    def retrieved(self) -> None:
        """The file can be retrieved."""
        path = self._path
        found = self.client.get(path).ok()
        for key in ("id", "bytes", "created_at", "filename", "purpose"):
            require_equal(found.get(key), self.file[key], f"`{key}`, as it was created")

    @behaviour
    def listed(self) -> None:
        """The newest file is the first of the list, and pages have the size that was asked for."""
        wanted = self.file["id"]
        page = self.client.get("/files", limit=100, order="desc", purpose="user_data").ok()
        check_page(page)
        require(wanted in [one["id"] for one in page["data"]], f"the file {wanted} in the list", page)
        require(len(self.client.get("/files", limit=1).ok()["data"]) == 1, "one file with limit=1")

    @behaviour
    def content(self) -> None:
        """The content is that of the upload, byte for byte."""
        path = f"{self._path}/content"
        reply = self.client.get(path)
        if reply.status in (400, 403):
            raise Unsupported(reply.error(400, 403)["message"])  # contents of some purposes cannot be downloaded
        require_equal(reply.status, 200, "the status")
        require(reply.content == _CONTENT, f"the {len(_CONTENT)} bytes of the upload", f"{len(reply.content)} bytes")

    @behaviour
    def refused(self) -> None:
        """An upload without a purpose is a 400."""
        _ = self.file
        self.client.upload("/files", UploadedContent("conformance.bin", b"1")).error(400)

    @behaviour
    def unknown_id(self) -> None:
        """An unknown id is a 404."""
        _ = self.file
        self.client.get("/files/file-conformance-unknown").error(404)

    @behaviour
    def deleted(self) -> None:
        """A deleted file is gone."""
        path, identifier = self._path, self.file["id"]
        expect_deleted(self.client.delete(path), "file", identifier)
        self.client.get(path).error(404)
