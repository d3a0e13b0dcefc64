"""What an answer refers to: files in containers, files that were searched, pages. And how to get such a file."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from weakincentives.adapters.core import PromptResponse
from weakincentives.adapters.openai.native_tools.code_interpreter_tool import ContainerFile
from weakincentives.adapters.openai.wire import MESSAGE, Wire, as_object, number_in, objects_in, parts_of, text_in
from weakincentives.errors import WinkError

if TYPE_CHECKING:
    from openai import OpenAI


@dataclass(frozen=True)
class ContainerFileCitation(ContainerFile):
    """A file that the model's code made, and the part of the text that speaks of it."""

    start_index: int = 0
    end_index: int = 0


@dataclass(frozen=True)
class FileCitation:
    """An uploaded file that the model found something in."""

    file_id: str
    filename: str
    index: int = 0


@dataclass(frozen=True)
class UrlCitation:
    """A page that the model found something on, and the part of the text that speaks of it."""

    url: str
    title: str
    start_index: int = 0
    end_index: int = 0


Citation: TypeAlias = ContainerFileCitation | FileCitation | UrlCitation


def read_citation(raw: Wire, offset: int = 0) -> Citation | None:
    """One annotation; None for a kind that we do not know. `offset` is where its part of the text begins."""
    match raw.get("type"):
        case "container_file_citation":
            return ContainerFileCitation(
                text_in(raw, "container_id"),
                text_in(raw, "file_id"),
                text_in(raw, "filename"),
                offset + number_in(raw, "start_index"),
                offset + number_in(raw, "end_index"),
            )
        case "file_citation":
            return FileCitation(text_in(raw, "file_id"), text_in(raw, "filename"), offset + number_in(raw, "index"))
        case "file_path":
            return FileCitation(text_in(raw, "file_id"), "", offset + number_in(raw, "index"))
        case "url_citation":
            return UrlCitation(
                text_in(raw, "url"),
                text_in(raw, "title"),
                offset + number_in(raw, "start_index"),
                offset + number_in(raw, "end_index"),
            )
        case _:
            return None


def citations(response: Any) -> tuple[Citation, ...]:  # noqa: ANN401 - an answer in any of its forms
    """Everything that an answer cites, in order: of a `PromptResponse`, an SDK's `Response`, or its JSON.

    Positions count from the beginning of the message's own part, as the API tells them.
    """
    if isinstance(response, PromptResponse):
        return cast("PromptResponse[Any]", response).citations
    plain = response.to_dict(mode="json", warnings=False) if hasattr(response, "to_dict") else response
    output = objects_in(as_object(plain, "the response").get("output"), "output")
    found = (
        read_citation(raw)
        for item in output
        if item.get("type") == MESSAGE
        for _, _, annotations in parts_of(item)
        for raw in annotations
    )
    return tuple(one for one in found if one is not None)


def download(client: OpenAI, citation: ContainerFile | FileCitation, dest: str | os.PathLike[str]) -> Path:
    """Write a cited file to `dest`, or into it where that is a directory, and return where it is.

    The file's name is the model's choice, so only its last part is used. An existing file is replaced once the new one
    is complete; a download that fails leaves nothing behind.
    """
    if not isinstance(citation, ContainerFile | FileCitation):  # pyright: ignore[reportUnnecessaryIsInstance] - not everybody checks types
        raise WinkError(f"{type(citation).__name__} is no file to download: cite a container's file or an uploaded one")
    target = Path(dest)
    if target.is_dir():
        target /= _safe_name(citation.filename or citation.file_id)
    part = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as file:
            for chunk in _content(client, citation):
                file.write(chunk)
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return target


def _content(client: OpenAI, citation: ContainerFile | FileCitation) -> Iterable[bytes]:
    if isinstance(citation, ContainerFile):
        files = client.containers.files.content.with_streaming_response
        request = files.retrieve(citation.file_id, container_id=citation.container_id)
    else:
        request = client.files.with_streaming_response.content(citation.file_id)
    with request as response:
        yield from response.iter_bytes()


def _safe_name(filename: str) -> str:
    name = filename.replace("\\", "/").rpartition("/")[2].replace("\0", "")
    if name in {"", ".", ".."}:
        raise WinkError(f"{filename!r} is no name for a file: give `dest` as the path of a file")
    return name
