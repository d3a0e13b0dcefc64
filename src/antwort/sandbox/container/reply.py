"""What a container answers to one call, checked before any of it is believed or handed on. Pure.

The header is small and says what each blob is; everything that can be long (the echo, an error's message, images)
travels as a blob. So however hostile the other side is, a frame costs the server no more memory than its bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeGuard, cast, get_args

from antwort.sandbox.jail import figures, wire

Status = Literal["success", "error", "exit", "interrupted"]

LARGEST_HEADER: Final = 1 << 16
_MOST_LEFT_OUT: Final = 1_000_000
_LARGEST_TEXT: Final = 7 << 20  # what the runner itself sends is shorter
_LARGEST_EXIT_CODE: Final = 255
_STATUSES: Final = frozenset(get_args(Status))
_TEXTS: Final = ("echo", "name", "message")


@dataclass(frozen=True, slots=True)
class Image:
    """A picture that the code made."""

    mime: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the code came to, as it says itself."""

    status: Status
    exit_code: int
    echo: str | None
    error: dict[str, str] | None
    images: list[Image] = field(default_factory=list[Image])
    left_out: int = 0
    """Images that were too many or too large."""


def read(frame: wire.Frame, token: str) -> Answer | None:
    """The answer to the question with this token, or None if the frame is anything else."""
    header, blobs = frame
    status, exit_code = header.get("status"), header.get("exit_code")
    kinds = _kinds(header.get("parts"), len(blobs))
    if header.get("call") != token or kinds is None:
        return None
    if not isinstance(status, str) or status not in _STATUSES:
        return None
    left_out = header.get("left_out", 0)
    if not _is_number(exit_code, _LARGEST_EXIT_CODE) or not _is_number(left_out, _MOST_LEFT_OUT):
        return None
    texts = {kind: blob for kind, blob in zip(kinds, blobs, strict=True) if kind in _TEXTS}
    if any(len(blob) > _LARGEST_TEXT for blob in texts.values()) or ("name" in texts) != ("message" in texts):
        return None
    images = [Image(kind, blob) for kind, blob in zip(kinds, blobs, strict=True) if kind == figures.PNG]
    if sum(len(image.data) for image in images) > figures.MOST_BYTES:
        return None
    # Bytes that are no text become marks, so that what is handed on can be written down anywhere.
    words = {kind: blob.decode(errors="replace") for kind, blob in texts.items()}
    return Answer(
        status=cast("Status", status),
        exit_code=exit_code,
        echo=words.get("echo"),
        error={"name": words["name"], "message": words["message"]} if "name" in words else None,
        images=images,
        left_out=left_out,
    )


def _is_number(value: object, most: int) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= most


def _kinds(parts: object, blobs: int) -> list[str] | None:
    """What each blob is, if all of that is known to us and no text comes twice."""
    if not isinstance(parts, list):
        return None
    kinds = [kind for kind in cast("list[Any]", parts) if isinstance(kind, str) and kind in (*_TEXTS, figures.PNG)]
    if not len(kinds) == len(cast("list[Any]", parts)) == blobs:
        return None
    texts = [kind for kind in kinds if kind in _TEXTS]
    few = len(texts) == len(set(texts)) and len(kinds) - len(texts) <= figures.MOST_IMAGES
    return kinds if few else None
