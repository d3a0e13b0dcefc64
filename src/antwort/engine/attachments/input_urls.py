"""Input URLs: fetches the http and https URLs of `input_image` and `input_file` parts, where the operator allows it.

The guarded fetcher gets the content before anything else reads the input: models get it as data, and hosted tools as a
file. The part keeps its URL as `antwort:source_url`. A stored response stores the content with its input, so that a
continuation reads the same bytes, and fetches nothing.

A URL of this request that cannot be fetched is an error that names its field; one of an earlier request, such as in an
item that was added to a conversation, is replaced by a text.
"""

from __future__ import annotations

import asyncio
import base64
import mimetypes
import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final, NamedTuple, cast
from urllib.parse import unquote, urlsplit

from antwort.api import items
from antwort.api.attached_parts import AttachedPart, PartLocation, as_function_output, attached_parts
from antwort.api.errors import ApiError, invalid
from antwort.api.items import SOURCE_URL, ComputerCallOutput, InputImage, Item, Raw
from antwort.engine.attachments.attacher import file_type, image_type
from antwort.engine.context import Context
from antwort.net.errors import QueueFull
from antwort.net.fair_semaphore import FairSemaphore
from antwort.net.fetch import FetchedPage, Fetcher, FetchError

MAX_URLS: Final = 64
"""URLs of one request."""
_MAX_CONCURRENT: Final = 4
"""Of one request."""
_SLOTS: Final = 16
_MAX_QUEUE: Final = 256
_IMAGE_TYPES: Final = ("", "application/octet-stream", "binary/octet-stream")
_HTTP_RE: Final = re.compile(r"https?://", re.IGNORECASE)
_MAX_NAME: Final = 200
_ACCEPT_IMAGES: Final = "image/png,image/jpeg,image/gif,image/webp"


class _Source(NamedTuple):
    """What is fetched, once for all parts that name it."""

    url: str
    is_image: bool


class _Content(NamedTuple):
    """What was fetched: a data URL, the name of a file, and the number of bytes."""

    data_url: str
    filename: str
    size: int


class InputUrls:
    """Fetches the URLs of the requests of this server; the content of one request has at most `max_bytes` together."""

    def __init__(self, fetcher: Fetcher, *, max_bytes: int) -> None:
        self._fetcher = fetcher
        self._max_bytes = max_bytes
        self._slots = FairSemaphore(_SLOTS, "URLs of input items", max_queue=_MAX_QUEUE, retry_after=5)

    async def resolve(self, context: Context, tenant: str, *, images: bool) -> Context:
        """The history with the content in place of the URLs. Without `images` only files are fetched."""
        request = _Request(self._fetcher, self._max_bytes, self._slots, tenant)
        visible = list(enumerate(context.visible, context.start))
        sources = _sources(((item, f"input[{at}]") for at, item in visible), images=images)
        earlier = _sources(((item, "") for item in context.before), images=images)
        if not (sources or earlier):
            return context
        fetched = await request.fetch_all(sources)
        given = list(context.given)
        for at, item in visible:
            given[at] = _resolved(item, fetched, {})
        found, failed = await request.fetch_what_is_left([one for one in earlier if one not in fetched], len(fetched))
        before = [_resolved(item, fetched | found, failed) for item in context.before]
        return replace(context, before=before, given=given)


class _Request:
    """The fetches of one request."""

    def __init__(self, fetcher: Fetcher, max_bytes: int, slots: FairSemaphore, tenant: str) -> None:
        self._fetcher = fetcher
        self._max_bytes = max_bytes
        self._slots = slots
        self._tenant = tenant
        self._size = 0
        self._own_slots = asyncio.Semaphore(_MAX_CONCURRENT)

    async def fetch_all(self, sources: dict[_Source, str]) -> dict[_Source, _Content]:
        """The content of all; the first error ends the others."""
        for param in list(sources.values())[MAX_URLS:]:
            raise invalid(f"The URLs of a request can be at most {MAX_URLS}.", param=param)
        tasks = [asyncio.create_task(self._fetch(source, param)) for source, param in sources.items()]
        try:
            contents = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return dict(zip(sources, contents, strict=True))

    async def fetch_what_is_left(
        self, sources: Sequence[_Source], count: int
    ) -> tuple[dict[_Source, _Content], dict[_Source, str]]:
        """The content of those that can be fetched, the last ones first; and why the others cannot be."""
        wanted = sources[max(0, len(sources) - MAX_URLS + count) :]
        answers = await asyncio.gather(*(self._fetch(source, "input") for source in wanted), return_exceptions=True)
        found: dict[_Source, _Content] = {}
        failed = dict.fromkeys(sources, "there are too many")
        for source, answer in zip(wanted, answers, strict=True):
            if isinstance(answer, BaseException):
                if not isinstance(answer, ApiError):
                    raise answer
                failed[source] = answer.message
            else:
                found[source] = answer
        return found, failed

    async def _fetch(self, source: _Source, param: str) -> _Content:
        async with self._own_slots, self._slot():
            if self._size >= self._max_bytes:
                raise self._too_large(param)
            try:
                page = await self._fetcher.fetch(
                    source.url,
                    accepts=_accepts_image if source.is_image else lambda _: True,
                    accept=_ACCEPT_IMAGES if source.is_image else "*/*",
                    tenant=self._tenant,
                )
            except FetchError as error:
                raise invalid(f"The URL could not be fetched: {error}.", param=param) from error
            self._size += len(page.body)
            if self._size > self._max_bytes:
                raise self._too_large(param)
            if not page.body:
                raise invalid("The URL could not be fetched: its content is empty.", param=param)
            return await asyncio.to_thread(_content, source, page, param)

    @asynccontextmanager
    async def _slot(self) -> AsyncGenerator[None]:
        try:
            await self._slots.acquire(self._tenant)
        except QueueFull as error:
            message = "Too many URLs of input items are being fetched. Try again later."
            raise ApiError(429, message, code="rate_limit_exceeded", retry_after=error.retry_after) from error
        try:
            yield
        finally:
            self._slots.release()

    def _too_large(self, param: str) -> ApiError:
        message = f"The URLs of this request have too much content for a model: more than {self._max_bytes} bytes."
        return invalid(message, param=param, code="file_too_large")


def _accepts_image(content_type: str) -> bool:
    return content_type.startswith("image/") or content_type in _IMAGE_TYPES


def _content(source: _Source, page: FetchedPage, param: str) -> _Content:
    """The content as data. An image is one by its first bytes, whatever its server says."""
    name = _filename(page)
    media_type = image_type(page.body) if source.is_image else file_type(name, page.body)
    if media_type is None:
        message = "The URL is not a supported image: it must be PNG, JPEG, GIF or WebP."
        raise invalid(message, param=param, code="unsupported_file")
    return _Content(f"data:{media_type};base64,{base64.b64encode(page.body).decode()}", name, len(page.body))


def _filename(page: FetchedPage) -> str:
    """The last segment of the path, with an extension of its content type if it has none."""
    last = unquote(urlsplit(page.url).path).rpartition("/")[2]
    name = "".join(filter(str.isprintable, last)).strip()[-_MAX_NAME:] or "file"
    has_extension = mimetypes.guess_type(name)[0] is not None or "." in name[1:]
    return name if has_extension else name + (mimetypes.guess_extension(page.content_type) or "")


# ── the parts of items ───────────────────────────────────────────────────────────────────────────────────────────────


def _source(part: AttachedPart) -> _Source | None:
    """What a part names by URL. An id or inline content counts more, as in `attacher`."""
    if isinstance(part, InputImage):
        url = part.image_url
    else:
        url = None if part.file_data or part.file_id is not None else part.file_url
    return _Source(url, isinstance(part, InputImage)) if url and _HTTP_RE.match(url) else None


def _named(item: Item, param: str) -> Iterator[tuple[PartLocation, _Source]]:
    for location, part in attached_parts(item, param):
        source = _source(part)
        if source is not None:
            yield location, source


def _sources(given: Iterator[tuple[Item, str]], *, images: bool) -> dict[_Source, str]:
    """What is to be fetched, with the path of the field that names it first."""
    found: dict[_Source, str] = {}
    for item, param in given:
        for location, source in _named(item, param):
            if images or not source.is_image:
                field = "image_url" if source.is_image else "file_url"
                found.setdefault(source, f"{location.param}.{field}")
    return found


def _resolved(item: Item, fetched: dict[_Source, _Content], failed: dict[_Source, str]) -> Item:
    """The item with the contents of its URLs; a text where that failed."""
    raw = item.raw
    for location, source in _named(item, ""):
        if isinstance(item.known, ComputerCallOutput) and (content := fetched.get(source)) is not None:
            screenshot = cast("Raw", raw[location.field])
            return items.read({**raw, location.field: _with_content(screenshot, source, content)})
        if source not in fetched and source not in failed:
            continue
        if raw is item.raw:
            raw = as_function_output(item).raw
        parts = list(cast("list[Raw]", raw[location.field]))
        part = parts[location.part_index]
        if (content := fetched.get(source)) is not None:
            parts[location.part_index] = _with_content(part, source, content)
        elif (reason := failed.get(source)) is not None:
            what = "image" if source.is_image else "file"
            parts[location.part_index] = {"type": "input_text", "text": f"[{what} {source.url}: {reason}]"}
        raw = {**raw, location.field: parts}
    return item if raw is item.raw else items.read(raw)


def _with_content(part: Raw, source: _Source, content: _Content) -> Raw:
    if source.is_image:
        return {**part, "image_url": content.data_url, SOURCE_URL: source.url}
    rest = {name: value for name, value in part.items() if name != "file_url"}
    name = part.get("filename") or content.filename
    return {**rest, "filename": name, "file_data": content.data_url, SOURCE_URL: source.url}
