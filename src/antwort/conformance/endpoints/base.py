"""`EndpointChecks`: base class of the checks of an area of endpoints, which are its public methods in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from antwort.conformance.checks import Unsupported, behaviours_of
from antwort.conformance.client import ApiClient, Json, Reply
from antwort.conformance.grammar import require, require_equal
from antwort.conformance.target import ABSENT, Target

LIST_KEYS = frozenset(("object", "data", "first_id", "last_id", "has_more"))


class EndpointChecks:
    """The checks of one area: its methods that are marked as behaviours."""

    area: ClassVar[str]

    def __init__(self, target: Target) -> None:
        self.target = target

    @property
    def client(self) -> ApiClient:
        return self.target.client

    def behaviours(self) -> Mapping[str, Callable[[], None]]:
        return {name: getattr(self, method) for name, method in behaviours_of(type(self)).items()}


def supported(reply: Reply, endpoint: str) -> Reply:
    """The answer, unless the server does not have the endpoint."""
    if reply.status in ABSENT:
        raise Unsupported(f"{endpoint} is answered with {reply.status}")
    return reply


def check_page(page: Json) -> None:
    """A page of a list: its keys, and the ids of its first and last object."""
    missing = LIST_KEYS - set(page)
    require(not missing, f"a page has the keys {sorted(missing)}", page)
    require_equal(page["object"], "list", "`object` of a page")
    ids = [one.get("id") for one in page["data"]]
    require(all(ids), "each object of a page has an id", page["data"])
    if ids:
        require_equal((page["first_id"], page["last_id"]), (ids[0], ids[-1]), "`first_id` and `last_id`")


def check_object(found: Json, kind: str, prefix: str, keys: str) -> None:
    """An object has its type, an id with its prefix, and these keys."""
    require_equal(found.get("object"), kind, "`object`")
    require(str(found.get("id")).startswith(prefix), f"an id that begins with {prefix}", found)
    missing = set(keys.split()) - set(found)
    require(not missing, f"the {kind} has the keys {sorted(missing)}", found)
