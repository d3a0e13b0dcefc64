"""Blobs in an object store, each as a sequence of objects of at most 4 MiB.

The objects of a blob are `PREFIX/NAME/00000`, `PREFIX/NAME/00001` and so on.
A blob ends with its first part that is shorter than `PART_SIZE`, maybe empty; without one it is incomplete. Multipart
uploads are not used: the parts of a killed process would be invisible to listings, paid for, and out of this client's
reach. Parts as objects are listed, so `unowned` finds them; each request is small, so it has a time limit and can be
repeated; and a slow client holds no connection to the store.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, cast

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import ObjectStore

from antwort.engine.stores import ContentFault, StoreFault
from antwort.storage.blobs.port import ORPHAN_AGE, KnownBlobs, UploadAge
from antwort.storage.errors import UnusableStore
from antwort.storage.objects.errors import ObjectStoreFault, has_no_conditions, is_missing, translate_errors

if TYPE_CHECKING:
    from obstore import ObjectMeta

PART_SIZE: Final = 4 * 1024 * 1024
"""Bytes of every part but the last. Stored blobs depend on it."""
CHUNK_SIZE: Final = 1024 * 1024
OWNER_OBJECT: Final = "antwort-store"
"""The object that holds the id of the store that the blobs belong to."""

_PART_RE = re.compile(r"(?P<name>[0-9a-f]{32})/\d{5,}")
_LIST_SIZE = 1000
_AFTER_EVERY_PART = "~"  # sorts behind digits
_REMOVAL_TIMEOUT = 60.0
_CLOSE_TIMEOUT = 5.0


class _ObjectUpload:
    """A blob that is being written."""

    def __init__(self, blobs: ObjectStoreBlobs, age: UploadAge) -> None:
        self.name = secrets.token_hex(16)
        self.size = 0
        self._blobs = blobs
        self._age = age
        self._parts = 0

    async def put(self, part: bytes) -> None:
        """Store the next part."""
        await self._blobs.put_part(self.name, self._parts, part)
        self._parts += 1
        self.size += len(part)
        self._age.written()

    def check_fresh(self) -> None:
        self._age.check()

    async def close(self, keep: bool | None) -> None:  # noqa: FBT001 - as in the port
        if keep is False:
            await self._blobs.remove((self.name,))


class _ObjectDownload:
    """Iterator over the chunks of a blob. It holds one part in memory."""

    def __init__(self, blobs: ObjectStoreBlobs, name: str, first: bytes) -> None:
        self._blobs = blobs
        self._name = name
        self._part = first
        self._number = 0
        self._offset = 0

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._offset >= len(self._part):
            if len(self._part) < PART_SIZE:
                raise StopAsyncIteration
            following = await self._blobs.get_part(self._name, self._number + 1)
            if following is None:
                raise ContentFault("The content of a file was deleted while it was read, or is incomplete.")
            self._part, self._number, self._offset = following, self._number + 1, 0
            return await self.__anext__()
        chunk = self._part[self._offset : self._offset + CHUNK_SIZE]
        self._offset += len(chunk)
        return chunk


class ObjectStoreBlobs:
    """A `BlobStore`: the objects below a prefix. `url` is for messages."""

    def __init__(self, client: ObjectStore, url: str, *, orphan_age: float = ORPHAN_AGE) -> None:
        self._client = client
        self._url = url
        self._orphan_age = orphan_age
        self._cursor: str | None = None
        self._removals: set[asyncio.Task[None]] = set()
        self._closed = False

    async def claim(self, store_id: str, known: KnownBlobs) -> str:
        """`UnusableStore` also if the object store refuses this configuration."""
        try:
            owner = await self._get(OWNER_OBJECT)
            if owner is None:
                is_known = await self._is_known(known)
                if is_known or await self._get(OWNER_OBJECT) is not None:
                    await self._create(OWNER_OBJECT, f"{store_id}\n{secrets.token_hex(16)}\n".encode())
                owner = await self._get(OWNER_OBJECT)  # that of another process that started at the same time, maybe
        except ObjectStoreFault as fault:
            if fault.is_refusal:
                raise UnusableStore(f"{fault} Fix that, or change `storage.blobs`.") from None
            raise
        if owner is None:
            raise UnusableStore(
                f"{self._url} has files that this database does not know, and no object {OWNER_OBJECT!r} that says "
                "which database they belong to. Set `storage.blobs` to another prefix; or, if no database needs them, "
                "delete them."
            )
        marked_id, _, place_id = owner.decode(errors="replace").partition("\n")
        if marked_id != store_id:
            raise UnusableStore(
                f"{self._url} holds the files of another database. Set `storage.blobs` to another prefix; or, if that "
                f"database does not exist any more, delete the object {OWNER_OBJECT!r} there."
            )
        # Its URL would not do: buckets of different endpoints have the same one.
        return place_id.strip() or self._url  # a mark of an earlier version has no id of the place

    async def write(self, content: AsyncIterator[bytes]) -> _ObjectUpload:
        upload = _ObjectUpload(self, UploadAge(self._orphan_age))
        try:
            buffer = bytearray()
            async for piece in content:
                buffer += piece
                while len(buffer) >= PART_SIZE:
                    await upload.put(bytes(buffer[:PART_SIZE]))
                    del buffer[:PART_SIZE]
            await upload.put(bytes(buffer))
        except BaseException:
            # Not waited for: the store may be the reason, and the caller may have been cancelled.
            self._start(self.remove((upload.name,)))
            raise
        return upload

    async def open(self, name: str) -> _ObjectDownload | None:
        first = await self.get_part(name, 0)
        return None if first is None else _ObjectDownload(self, name, first)

    async def remove(self, names: Iterable[str]) -> None:
        with suppress(StoreFault, TimeoutError):
            async with asyncio.timeout(_REMOVAL_TIMEOUT):
                for name in names:
                    await self._remove(name)

    async def unowned(self, limit: int) -> list[str]:
        newest: dict[str, datetime] = {}
        last: str | None = None
        seen = 0
        self._check_open()
        with translate_errors(self._url):
            async for entries in self._list(offset=self._cursor):
                for entry in entries:
                    if found := _PART_RE.fullmatch(entry["path"]):
                        last = str(found["name"])
                        newest[last] = max(newest.get(last, entry["last_modified"]), entry["last_modified"])
                seen += len(entries)
                if seen >= limit and len(newest) > 1:
                    break
            else:
                last = None
        if last is not None:
            # The listing was left inside of the last blob, whose newest part may follow: the next call begins with it.
            del newest[last]
        self._cursor = None if last is None else f"{max(newest)}/{_AFTER_EVERY_PART}"
        oldest = datetime.now(UTC) - timedelta(seconds=self._orphan_age)
        return [name for name, written_at in newest.items() if written_at < oldest]

    async def aclose(self) -> None:
        self._closed = True
        if self._removals:
            _, slow = await asyncio.wait(self._removals, timeout=_CLOSE_TIMEOUT)
            for task in slow:
                task.cancel()

    async def put_part(self, name: str, number: int, part: bytes) -> None:
        """Store a part of a blob."""
        await self._put(_path(name, number), part)

    async def get_part(self, name: str, number: int) -> bytes | None:
        """A part of a blob."""
        return await self._get(_path(name, number))

    async def _is_known(self, known: KnownBlobs) -> bool:
        """Whether the store knows one of the blobs, or there is none."""
        is_empty = True
        with translate_errors(self._url):
            async for entries in self._list():
                names = {str(found["name"]) for entry in entries if (found := _PART_RE.fullmatch(entry["path"]))}
                if names and await known(sorted(names)):
                    return True
                is_empty = is_empty and not names
        return is_empty

    async def _create(self, path: str, content: bytes) -> None:
        """Store an object unless there is one; in an object store without conditional requests, also then."""
        self._check_open()
        with translate_errors(self._url):
            try:
                await obstore.put_async(self._client, path, content, use_multipart=False, mode="create")
            except AlreadyExistsError:
                return
            except BaseError as error:
                if not has_no_conditions(error):
                    raise
                await obstore.put_async(self._client, path, content, use_multipart=False)

    async def _put(self, path: str, content: bytes) -> None:
        self._check_open()
        with translate_errors(self._url):
            await obstore.put_async(self._client, path, content, use_multipart=False)

    async def _get(self, path: str) -> bytes | None:
        self._check_open()
        with translate_errors(self._url):
            try:
                found = await obstore.get_async(self._client, path)
                return bytes(await found.bytes_async())
            except FileNotFoundError as error:
                if is_missing(error):
                    return None
                raise

    async def _remove(self, name: str) -> None:
        with translate_errors(self._url):
            async for entries in self._list(prefix=name):
                paths = [entry["path"] for entry in entries]
                with suppress(FileNotFoundError):  # others delete it too
                    await obstore.delete_async(self._client, paths)

    def _list(self, prefix: str | None = None, offset: str | None = None) -> AsyncIterable[Sequence[ObjectMeta]]:
        options = {"prefix": prefix, "offset": offset, "chunk_size": _LIST_SIZE}
        return cast("Any", obstore).list(self._client, **options)  # its type names that of an optional package

    def _check_open(self) -> None:
        if self._closed:
            raise StoreFault("The store is closed.")

    def _start(self, removal: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(removal)
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)


def _path(name: str, number: int) -> str:
    return f"{name}/{number:05d}"
