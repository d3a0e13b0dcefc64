"""Blobs in an object store: Amazon S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage.

The only package that imports obstore (extra `objectstore`).
"""

from __future__ import annotations

__all__: list[str] = []
