"""Blobs: the contents of files. The port, and its implementation in a directory.

`antwort.storage.objects` has that in an object store, and `antwort.testing.blobs` the conformance tests for both.
"""

from __future__ import annotations

from antwort.storage.blobs.directory import DirectoryBlobs
from antwort.storage.blobs.port import ORPHAN_AGE, BlobStore, BlobUpload, KnownBlobs

__all__ = ["ORPHAN_AGE", "BlobStore", "BlobUpload", "DirectoryBlobs", "KnownBlobs"]
