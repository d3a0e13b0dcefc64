"""ExecReply: the result of one call, from the frame on the control channel to the JSON report. Pure.

A frame comes from hostile code, so `parse` checks every part of it first. The header is small and names the kind of
each blob; everything that can be long (the result, an error's message, images) is a blob. A hostile frame therefore
costs the server no more memory than its bytes.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, TypeGuard, cast

from antwort.sandbox.container.capture import StreamName
from antwort.sandbox.jail import figures, wire

Status = Literal["success", "error", "exit", "interrupted", "timeout", "ended"]

MAX_HEADER_BYTES: Final = 1 << 16
_MAX_LEFT_OUT: Final = 1_000_000
_MAX_TEXT_BYTES: Final = 7 << 20  # the runner sends less
_MAX_EXIT_CODE: Final = 255
_STATUSES: Final = frozenset({"success", "error", "exit", "interrupted"})
"""What a frame may claim; `timeout` and `ended` are decided by the server."""
_TEXTS: Final = ("result", "name", "message")


@dataclass(frozen=True, slots=True)
class FigureImage:
    """An image that the code produced."""

    mime: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecReply:
    """The result of one call; the fields are those of the JSON report."""

    status: Status
    """`ended`: the container is gone, and `reason` says why."""
    exit_code: int
    stdout: str = ""
    stderr: str = ""
    output: list[tuple[StreamName, str]] = field(default_factory=list[tuple[StreamName, str]])
    """Both streams in the order in which they were written."""
    result: str | None = None
    """The `repr` of the last expression."""
    error: dict[str, str] | None = None
    images: list[FigureImage] = field(default_factory=list[FigureImage])
    images_left_out: int = 0
    """Images over the limit on number or size of one reply."""
    execution_time_ms: int = 0
    reason: str | None = None
    cut_bytes: int = 0

    def report(self) -> dict[str, Any]:
        """The JSON object that the server sends."""
        return {f.name: getattr(self, f.name) for f in fields(self)} | {
            "output": [{"stream": name, "text": text} for name, text in self.output],
            "images": [{"mime": i.mime, "data": base64.b64encode(i.data).decode()} for i in self.images],
        }


def parse(frame: wire.Frame, token: str) -> ExecReply | None:
    """The reply to the call with this token, without its output; None if the frame is anything else."""
    header, blobs = frame
    status, exit_code = header.get("status"), header.get("exit_code")
    kinds = _kinds(header.get("parts"), len(blobs))
    if header.get("call") != token or kinds is None:
        return None
    if not isinstance(status, str) or status not in _STATUSES:
        return None
    left_out = header.get("images_left_out", 0)
    if not _is_number(exit_code, _MAX_EXIT_CODE) or not _is_number(left_out, _MAX_LEFT_OUT):
        return None
    blob_of = {kind: blob for kind, blob in zip(kinds, blobs, strict=True) if kind in _TEXTS}
    if any(len(blob) > _MAX_TEXT_BYTES for blob in blob_of.values()) or ("name" in blob_of) != ("message" in blob_of):
        return None
    images = [FigureImage(kind, blob) for kind, blob in zip(kinds, blobs, strict=True) if kind == figures.PNG]
    if sum(len(image.data) for image in images) > figures.MAX_IMAGE_BYTES:
        return None
    # Invalid UTF-8 is replaced, so that the text can be encoded again anywhere.
    texts = {kind: blob.decode(errors="replace") for kind, blob in blob_of.items()}
    return ExecReply(
        status=cast("Status", status),
        exit_code=exit_code,
        result=texts.get("result"),
        error={"name": texts["name"], "message": texts["message"]} if "name" in texts else None,
        images=images,
        images_left_out=left_out,
    )


def _is_number(value: object, maximum: int) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= maximum


def _kinds(parts: object, blobs: int) -> list[str] | None:
    """The kind of each blob, or None if one is unknown, a text comes twice, or there are too many images."""
    if not isinstance(parts, list):
        return None
    kinds = [kind for kind in cast("list[Any]", parts) if isinstance(kind, str) and kind in (*_TEXTS, figures.PNG)]
    if not len(kinds) == len(cast("list[Any]", parts)) == blobs:
        return None
    texts = [kind for kind in kinds if kind in _TEXTS]
    is_valid = len(texts) == len(set(texts)) and len(kinds) - len(texts) <= figures.MAX_IMAGES
    return kinds if is_valid else None
