"""Clients of object stores, made from a `storage.blobs` URL, its settings and the environment."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, ObjectStore, S3Store

from antwort.config import ObjectStoreSettings
from antwort.net.origin import is_loopback
from antwort.storage.errors import UnusableStore

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

_CONNECT_TIMEOUT = timedelta(seconds=3)
_REQUEST_TIMEOUT = timedelta(seconds=15)
"""For one part, which has a bounded size."""
_RETRY: RetryConfig = {"max_retries": 3, "retry_timeout": timedelta(seconds=10)}
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


def open_client(url: str, settings: ObjectStoreSettings, environment: Mapping[str, str]) -> ObjectStore:
    """The client for a URL that the configuration has checked; `UnusableStore` if it cannot be made. Reads files."""
    scheme, _, rest = url.partition("://")
    bucket, _, path = rest.partition("/")
    prefix = path.strip("/") or None
    options: ClientConfig = {
        "allow_http": settings.allow_http,
        "connect_timeout": _CONNECT_TIMEOUT,
        "timeout": _REQUEST_TIMEOUT,
    }
    try:
        if scheme == "gs":
            return GCSStore(bucket, prefix=prefix, client_options=options, retry_config=_RETRY)
        if scheme == "az":
            return AzureStore(bucket, prefix=prefix, client_options=options, retry_config=_RETRY)
        return _open_s3(bucket, prefix, settings, environment, options)
    except (BaseError, OSError, ValueError) as error:
        kind = type(error).__name__  # not its text, which may quote a variable
        reason = f"The object store `storage.blobs` cannot be used: {kind}."
        raise UnusableStore(f"{reason} Check the variables that configure its credentials.") from None


def _open_s3(
    bucket: str,
    prefix: str | None,
    settings: ObjectStoreSettings,
    environment: Mapping[str, str],
    options: ClientConfig,
) -> S3Store:
    endpoint = settings.endpoint or next(filter(None, map(environment.get, _ENDPOINT_VARIABLES)), None)
    region = settings.region or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
    # Amazon's certificates do not match host names of buckets with dots.
    is_path_style = settings.path_style if settings.path_style is not None else bool(endpoint) or "." in bucket
    if endpoint is None:
        return S3Store(
            bucket,
            prefix=prefix,
            region=region,
            virtual_hosted_style_request=not is_path_style,
            client_options=options,
            retry_config=_RETRY,
        )
    options["allow_http"] = _may_use_http(endpoint, settings)
    resolved = endpoint.rstrip("/") if is_path_style else _with_bucket_host(endpoint, bucket)
    return S3Store(
        bucket,
        prefix=prefix,
        region=region,
        endpoint=resolved,
        aws_endpoint_url_s3=resolved,  # takes precedence, and would otherwise be that of the environment
        virtual_hosted_style_request=not is_path_style,
        client_options=options,
        retry_config=_RETRY,
    )


def _may_use_http(endpoint: str, settings: ObjectStoreSettings) -> bool:
    url = urlsplit(endpoint)
    if url.scheme == "https" or settings.allow_http or is_loopback(url.hostname or ""):
        return url.scheme == "http"
    raise UnusableStore(
        "The endpoint of the object store is an `http://` URL, and not a loopback address: contents and requests would "
        "be sent without encryption. Use `https://`, or set `storage.object_store.allow_http` to true."
    )


def _with_bucket_host(endpoint: str, bucket: str) -> str:
    url = urlsplit(endpoint)
    return f"{url.scheme}://{bucket}.{url.netloc}{url.path.rstrip('/')}"
