"""Citations of a response (container files, searched files, URLs), and the download of cited files."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from weakincentives.adapters.core import PromptResponse
from weakincentives.adapters.openai.native_tools.code_interpreter_tool import ContainerFile
from weakincentives.adapters.openai.wire import MESSAGE, Wire, as_object, as_objects, get_count, get_str, message_parts
from weakincentives.errors import WinkError

if TYPE_CHECKING:
    from openai import OpenAI


@dataclass(frozen=True)
class ContainerFileCitation(ContainerFile):
    """A file that the model's code created, and the range of the text that cites it."""

    start_index: int = 0
    end_index: int = 0


@dataclass(frozen=True)
class FileCitation:
    """An uploaded file that the model cites."""

    file_id: str
    filename: str
    index: int = 0


@dataclass(frozen=True)
class UrlCitation:
    """A web page that the model cites, and the range of the text that cites it."""

    url: str
    title: str
    start_index: int = 0
    end_index: int = 0


Citation: TypeAlias = ContainerFileCitation | FileCitation | UrlCitation


def parse_citation(raw: Wire, offset: int = 0) -> Citation | None:
    """Parse one annotation; None for an unknown type. `offset` is the start of its part in the whole text."""
    match raw.get("type"):
        case "container_file_citation":
            ids = (get_str(raw, "container_id"), get_str(raw, "file_id"), get_str(raw, "filename"))
            return ContainerFileCitation(*ids, *_text_range(raw, offset))
        case "file_citation":
            return FileCitation(get_str(raw, "file_id"), get_str(raw, "filename"), offset + get_count(raw, "index"))
        case "file_path":
            return FileCitation(get_str(raw, "file_id"), "", offset + get_count(raw, "index"))
        case "url_citation":
            return UrlCitation(get_str(raw, "url"), get_str(raw, "title"), *_text_range(raw, offset))
        case _:
            return None


def _text_range(raw: Wire, offset: int) -> tuple[int, int]:
    return offset + get_count(raw, "start_index"), offset + get_count(raw, "end_index")


def citations(response: Any) -> tuple[Citation, ...]:  # noqa: ANN401 - a response in any of its forms
    """All citations, in order, of a `PromptResponse`, of an SDK `Response`, or of its JSON.

    In the last two cases positions count from the start of the message part, as in the API.
    """
    if isinstance(response, PromptResponse):
        return cast("PromptResponse[Any]", response).citations
    plain = response.to_dict(mode="json", warnings=False) if hasattr(response, "to_dict") else response
    output = as_objects(as_object(plain, "the response").get("output"), "output")
    found = (
        parse_citation(raw)
        for item in output
        if item.get("type") == MESSAGE
        for _, _, annotations in message_parts(item)
        for raw in annotations
    )
    return tuple(one for one in found if one is not None)


def download(client: OpenAI, citation: ContainerFile | FileCitation, dest: str | os.PathLike[str]) -> Path:
    """Write a cited file to `dest`, or into it if that is a directory, and return the path of the file.

    The model chooses the file's name, so only its last component is used. An existing file is replaced when the
    download is complete; a failed download leaves no file.
    """
    if not isinstance(citation, ContainerFile | FileCitation):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not check types
        raise WinkError(
            f"{type(citation).__name__} is not a file that can be downloaded: give a ContainerFile or a FileCitation"
        )
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
        raise WinkError(f"{filename!r} is not a file name: give `dest` as the path of a file")
    return name
