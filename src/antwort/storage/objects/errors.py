"""Translation of obstore's errors. Its texts contain answers of the store, with key ids in them, so none is passed on.

The cause is not chained either, because a log would show its text.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager

from obstore.exceptions import BaseError, NotSupportedError, PermissionDeniedError, UnauthenticatedError

from antwort.engine.stores import ContentFault

_STATUS_RE = re.compile(r"non-2xx status code: (?P<status>\d{3})")
_CODE_RE = re.compile(r"<Code>(?P<code>[A-Za-z]{1,64})</Code>")
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound"}
_WRONG_REGION = {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"}
_METADATA_HOSTS = ("169.254.", "metadata.google.internal", "[fd00:ec2::254]")  # asked where there are no credentials


class ObjectStoreFault(ContentFault):
    """The object store failed. `is_refusal`: it answered, and refuses this configuration."""

    def __init__(self, message: str, *, is_refusal: bool) -> None:
        super().__init__(message)
        self.is_refusal = is_refusal


def is_missing(error: Exception) -> bool:
    """Whether an object does not exist, in a bucket that does."""
    return isinstance(error, FileNotFoundError) and _code(error) not in _NO_BUCKET


def has_no_conditions(error: BaseError) -> bool:
    """Whether the object store does not support a condition of a request, such as that an object does not exist."""
    return isinstance(error, NotSupportedError) or _code(error) == "NotImplemented"


@contextmanager
def translate_errors(url: str) -> Generator[None]:
    """Raise errors of the block as `ObjectStoreFault`, which names the store by its URL."""
    try:
        yield
    except (BaseError, OSError, ValueError) as error:
        reason, is_refusal = _reason(error)
        raise ObjectStoreFault(f"{url} failed: {reason}.", is_refusal=is_refusal) from None


def _reason(error: Exception) -> tuple[str, bool]:
    """The reason, and whether a change of the configuration is needed."""
    text, code = str(error), _code(error)
    detail = f" ({code})" if code else ""
    if code in _NO_BUCKET:
        return "the bucket does not exist", True
    if code in _WRONG_REGION or "redirect without LOCATION" in text:
        return "the bucket is in another region than `storage.object_store.region` or `AWS_REGION`", True
    found = _STATUS_RE.search(text)
    status = found["status"] if found else None
    if isinstance(error, (PermissionDeniedError, UnauthenticatedError)) or status in {"401", "403"}:
        return f"the object store rejects the credentials, or they lack a permission{detail}", True
    if any(host in text for host in _METADATA_HOSTS):
        return "there are no credentials in the environment, and this host provides none", True
    return f"the object store answered {status}{detail}" if status else "the object store does not answer", False


def _code(error: Exception) -> str | None:
    """The error code in an answer of the store."""
    found = _CODE_RE.search(str(error))
    return found["code"] if found else None
