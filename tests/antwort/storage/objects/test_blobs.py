from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest
from fixtures_object_store import (
    ACCESS_KEY,
    SECRET_KEY,
    answering,
    racing_mark,
    running_s3,
    s3_credentials,
    s3_server,
)

from antwort.config import ObjectStoreSettings
from antwort.engine.stores import ContentFault, StoreFault
from antwort.storage import UnusableStore, open_store
from antwort.storage.blobs import ORPHAN_AGE, BlobStore
from antwort.storage.factory import open_blobs
from antwort.storage.objects.blobs import OWNER_OBJECT, PART_SIZE, ObjectStoreBlobs
from antwort.testing.blobs import BlobConformance, pieces, read, store, unknown
from antwort.testing.checks import not_none
from antwort.testing.store import FileConformance

__all__ = ["s3_credentials", "s3_server"]  # fixtures

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("s3_credentials")]


async def opened(endpoint: str, bucket: str, orphan_age: float = ORPHAN_AGE) -> ObjectStoreBlobs:
    settings = ObjectStoreSettings(endpoint=endpoint)
    blobs = await asyncio.to_thread(open_blobs, f"s3://{bucket}/some/prefix", settings, orphan_age)
    assert isinstance(blobs, ObjectStoreBlobs)
    return blobs


def bucket_of(server, directory: Path) -> str:
    """The bucket for a directory, created if it is missing."""
    name = f"test-{hashlib.sha256(str(directory).encode()).hexdigest()[:32]}"
    if name not in {entry["Name"] for entry in server.client().list_buckets()["Buckets"]}:
        server.bucket(name)
    return name


class TestObjectStoreBlobs(BlobConformance):
    """The conformance suite, on a bucket of its own for each test."""

    @pytest.fixture(autouse=True)
    def _server(self, s3_server):
        self.server = s3_server

    async def open(self, directory: Path, orphan_age: float) -> BlobStore:
        bucket = await asyncio.to_thread(bucket_of, self.server, directory)
        return await opened(self.server.url, bucket, orphan_age)


class TestFilesInAnObjectStore(FileConformance):
    """The conformance suite of files, with SQLite and an object store."""

    @pytest.fixture(autouse=True)
    def _server(self, s3_server):
        self.server = s3_server

    async def open(self, directory: Path):
        bucket = await asyncio.to_thread(bucket_of, self.server, directory)
        settings = ObjectStoreSettings(endpoint=self.server.url)
        return await open_store(f"sqlite:///{directory}/antwort.db", f"s3://{bucket}/files", object_store=settings)


@pytest.fixture
def bucket(s3_server):
    return s3_server.bucket()


@pytest.fixture
async def blobs(s3_server, bucket):
    blobs = await opened(s3_server.url, bucket)
    yield blobs
    await blobs.aclose()


async def test_a_blob_is_stored_in_parts_of_a_fixed_size(blobs, s3_server, bucket):
    names = [await store(blobs, bytes(size)) for size in (0, 10, PART_SIZE, 2 * PART_SIZE + 3)]

    assert await asyncio.to_thread(s3_server.objects, bucket) == {
        f"some/prefix/{names[0]}/00000": 0,
        f"some/prefix/{names[1]}/00000": 10,
        f"some/prefix/{names[2]}/00000": PART_SIZE,
        f"some/prefix/{names[2]}/00001": 0,
        f"some/prefix/{names[3]}/00000": PART_SIZE,
        f"some/prefix/{names[3]}/00001": PART_SIZE,
        f"some/prefix/{names[3]}/00002": 3,
    }
    await blobs.remove(names)
    assert await asyncio.to_thread(s3_server.objects, bucket) == {}


async def test_a_blob_without_its_last_part_fails_instead_of_ending_early(blobs, s3_server, bucket):
    name = await store(blobs, bytes(PART_SIZE + 1))
    await asyncio.to_thread(s3_server.client().delete_object, Bucket=bucket, Key=f"some/prefix/{name}/00001")

    with pytest.raises(ContentFault, match="incomplete"):
        await read(blobs, name)


async def test_unowned_blobs_with_several_parts_count_from_their_newest(s3_server, bucket, blobs):
    """Each blob has three parts, so that a listing is left inside of one."""
    names = {await store(blobs, bytes(2 * PART_SIZE)) for _ in range(3)}
    await blobs.put_part("f" * 32, 0, b"")
    swept = await opened(s3_server.url, bucket, orphan_age=1.0)
    async with asyncio.timeout(30):
        found: set[str] = set()
        while not found >= names | {"f" * 32}:
            found |= set(await swept.unowned(1))
            await asyncio.sleep(0.02)
    await swept.aclose()
    assert await blobs.unowned(1000) == []


async def test_foreign_objects_and_the_mark_are_not_blobs(s3_server, bucket, blobs):
    await blobs.claim("store-1", unknown)
    client = s3_server.client()
    for key in ("some/prefix/readme", "some/prefix/" + "a" * 32, "other/" + "a" * 32 + "/00000"):
        await asyncio.to_thread(client.put_object, Bucket=bucket, Key=key, Body=b"")
    swept = await opened(s3_server.url, bucket, orphan_age=1e-9)

    assert await swept.unowned(1000) == []
    assert f"some/prefix/{OWNER_OBJECT}" in await asyncio.to_thread(s3_server.objects, bucket)
    await swept.aclose()


async def test_buckets_of_one_name_at_two_endpoints_are_different_places(s3_server, bucket):
    """Two replicas that use them must not start together: neither would find the contents of the other."""
    with running_s3() as other:
        await asyncio.to_thread(other.bucket, bucket)
        here, again, there = [await opened(url, bucket) for url in (s3_server.url, s3_server.url, other.url)]
        place = await here.claim("store-1", unknown)
        assert await again.claim("store-1", unknown) == place
        assert await there.claim("store-1", unknown) != place
        for one in (here, again, there):
            await one.aclose()


async def test_a_mark_of_an_earlier_version_stays_valid(s3_server, bucket):
    put = s3_server.client().put_object
    await asyncio.to_thread(put, Bucket=bucket, Key=f"some/prefix/{OWNER_OBJECT}", Body=b"store-1")
    first, second = [await opened(s3_server.url, bucket) for _ in range(2)]
    assert await first.claim("store-1", unknown) == await second.claim("store-1", unknown)
    with pytest.raises(UnusableStore, match="another database"):
        await first.claim("store-2", unknown)
    for one in (first, second):
        await one.aclose()


async def test_an_upload_that_may_be_an_orphan_to_others_is_not_recorded(s3_server, bucket):
    blobs = await opened(s3_server.url, bucket, orphan_age=1e-9)
    upload = await blobs.write(pieces(b"content"))

    with pytest.raises(StoreFault, match="took too long"):
        upload.check_fresh()
    await upload.close(keep=False)
    await blobs.aclose()


@pytest.mark.parametrize("has_conditions", [True, False])
async def test_the_mark_of_a_store_that_starts_at_the_same_time_is_not_overwritten(has_conditions):
    """Unless the object store has no conditional requests."""
    with racing_mark("store-2", has_conditions=has_conditions) as (endpoint, writes):
        blobs = await opened(endpoint, "bucket")
        if has_conditions:
            with pytest.raises(UnusableStore, match="holds the files of another database"):
                await blobs.claim("store-1", unknown)
        else:
            await blobs.claim("store-1", unknown)
        await blobs.aclose()
    assert (writes[0], writes[-1]) == ("*", "*" if has_conditions else None)


# ── failures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "status, code, reason, is_permanent",
    [
        (403, "InvalidAccessKeyId", r"rejects the credentials, or they lack a permission \(InvalidAccessKeyId\)", True),
        (404, "NoSuchBucket", "the bucket does not exist", True),
        (301, "PermanentRedirect", "another region", True),
        (503, "SlowDown", r"answered 503 \(SlowDown\)", False),
    ],
)
async def test_an_answer_with_an_error_is_a_fault_that_names_the_store_and_no_secret(
    status, code, reason, is_permanent
):
    with answering(status, code) as endpoint:
        blobs = await opened(endpoint, "bucket")
        with pytest.raises(ContentFault, match=rf"^s3://bucket/some/prefix failed: .*{reason}") as fault:
            await blobs.write(pieces(b"x"))
        with pytest.raises(ContentFault, match=reason):
            await blobs.open("0" * 32)
        with pytest.raises(ContentFault, match=reason):
            await blobs.unowned(10)
        await blobs.remove(["0" * 32])  # what remains is an orphan
        with pytest.raises(UnusableStore if is_permanent else ContentFault, match=reason):
            await blobs.claim("store-1", unknown)
        await blobs.aclose()
    assert fault.value.__cause__ is None
    assert fault.value.__suppress_context__
    assert ACCESS_KEY not in str(fault.value)
    assert SECRET_KEY not in str(fault.value)


async def test_an_object_store_that_is_away_is_a_fault(free_port):
    blobs = await opened(f"http://127.0.0.1:{free_port}", "bucket")
    with pytest.raises(ContentFault, match="does not answer"):
        await blobs.write(pieces(b"x"))
    await blobs.aclose()


@pytest.fixture
def free_port():
    with answering(200, "None") as endpoint:
        return int(endpoint.rpartition(":")[2])


async def test_a_part_that_is_lost_while_it_is_uploaded_fails_the_upload(s3_server, bucket):
    """The bucket disappears in the middle."""
    blobs = await opened(s3_server.url, bucket)

    async def content():
        yield bytes(PART_SIZE)
        client = s3_server.client()
        for key in await asyncio.to_thread(s3_server.objects, bucket):
            await asyncio.to_thread(client.delete_object, Bucket=bucket, Key=key)
        await asyncio.to_thread(client.delete_bucket, Bucket=bucket)
        yield bytes(PART_SIZE)

    with pytest.raises(ContentFault, match="the bucket does not exist"):
        await blobs.write(content())
    await blobs.aclose()


async def test_a_store_whose_content_is_deleted_by_others_fails_clearly(s3_server, bucket, tmp_path):
    from antwort.testing.store.base import OWNER, chunks  # noqa: PLC0415 - pytest fixtures of the same names above
    from antwort.testing.store.files import file_record  # noqa: PLC0415 - likewise here

    settings = ObjectStoreSettings(endpoint=s3_server.url)
    opened_store = await open_store(f"sqlite:///{tmp_path}/a.db", f"s3://{bucket}", object_store=settings)
    await opened_store.create_file(OWNER, file_record("file-1"), chunks(b"content"))
    client = s3_server.client()
    for key in await asyncio.to_thread(s3_server.objects, bucket):
        await asyncio.to_thread(client.delete_object, Bucket=bucket, Key=key)
    with pytest.raises(ContentFault, match="The content of a file is missing"):
        not_none(await opened_store.read_file(OWNER, "file-1"))
    await opened_store.aclose()
