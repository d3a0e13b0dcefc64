"""Conversation history of a request: the previous responses or the conversation, then its own input items."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar, cast

from antwort.api import items
from antwort.api.errors import ApiError, invalid, not_found
from antwort.api.ids import new_item_id
from antwort.api.items import (
    AdditionalTools,
    CompactionTrigger,
    GivenCodeCall,
    GivenMessage,
    GivenReasoning,
    Item,
    ItemReference,
    Raw,
    ToolSearchOutput,
)
from antwort.api.requests import ALL_REFUSED, CreateResponse, item_schemas, read_input
from antwort.api.secrets import item_without_secrets
from antwort.api.tools import ToolTypes
from antwort.api.validation.ids import SAME_ID_AS_CALL, check_each_once
from antwort.api.validation.schemas import GivenSchema, check_schemas
from antwort.engine.compaction.opening import TenantSealer, open_history
from antwort.engine.ports import ChosenModel
from antwort.engine.stores import Owner, Store

T = TypeVar("T")

_MAX_ITEMS_INLINE = 256
"""More items are parsed in a thread: they would block the event loop."""


@dataclass(frozen=True)
class Context:
    """The history: the items before this request, and those of this request.

    A compaction item replaces what is before it: `before` has the opened window, and the items of this request are
    visible from `start` on.
    """

    before: list[Item]
    given: list[Item]
    start: int = 0
    previous: list[Raw] = field(default_factory=list[Raw])
    """The items of the `previous_response_id` chain, as they were loaded."""
    is_previous_stored: bool = True
    """Whether they came from the store."""

    @property
    def history(self) -> list[Item]:
        """All visible items."""
        return [*self.before, *self.visible]

    @property
    def visible(self) -> list[Item]:
        """The visible items of this request."""
        return self.given[self.start : -1] if self.is_compaction else self.given[self.start :]

    @property
    def is_compaction(self) -> bool:
        """Whether the request is for a compaction, not for an answer."""
        return bool(self.given) and isinstance(self.given[-1].known, CompactionTrigger)


class RecentResponses(Protocol):
    """Responses that are not stored and can be continued all the same, such as those of a WebSocket."""

    async def history(self, response_id: str) -> list[Raw] | None:
        """What `ResponseStore.history` returns for a stored response."""
        ...


class NoRecentResponses:
    """No responses but those of the store."""

    async def history(self, response_id: str) -> None:
        """None: there is no such response."""
        del response_id


NO_RECENT_RESPONSES: Final = NoRecentResponses()


async def load_context(
    request: CreateResponse,
    owner: Owner,
    store: Store,
    sealer: TenantSealer,
    model: ChosenModel,
    *,
    tool_types: ToolTypes = ALL_REFUSED,
    is_resumed: bool = False,
    recent: RecentResponses = NO_RECENT_RESPONSES,
) -> Context:
    """Load the history. A reference to a missing object, or to another owner's, is an error that names it.

    The input of a resumed response is not validated again: it was when the response began.
    """
    stored, is_stored = await _load_history(request, owner, store, recent)
    given_items = request.input if isinstance(request.input, list) else []
    if is_resumed:
        read = await _in_thread_if_many(given_items, lambda: [items.read(raw) for raw in given_items])
    else:
        read = await _in_thread_if_many(given_items, lambda: read_input(request.input, tool_types))
        await check_in_steps(item_schemas(read, "input"))
        check_each_once(_uncompacted(read), "input", _ids(stored))
    for at, item in enumerate(read[:-1]):
        if isinstance(item.known, CompactionTrigger):
            raise invalid("An item of type 'compaction_trigger' must be the last one.", param=f"input[{at}]")
    before = await _in_thread_if_many(stored, lambda: [items.read(raw) for raw in stored])
    resolved = await _resolve(read, owner, store, "input")
    opened = await open_history(before, resolved, sealer, model, asyncio.to_thread)
    given = await _in_thread_if_many(opened.given, lambda: [_normalized_input(item) for item in opened.given])
    previous = [] if request.previous_response_id is None else stored
    return Context(opened.before, given, opened.start, previous, is_stored)


async def check_in_steps(given: Iterable[GivenSchema]) -> None:
    """`ApiError` 400 for a schema that OpenAI refuses."""
    for _ in check_schemas(given):
        await asyncio.sleep(0)  # large schemas must not block the event loop


async def normalize_items(given: list[Item], owner: Owner, store: Store, param: str) -> list[Item]:
    """Items as they are stored: references resolved, each with an id and a status, messages with parts."""
    resolved = await _resolve(given, owner, store, param)
    return await _in_thread_if_many(resolved, lambda: [_normalized(item) for item in resolved])


async def _in_thread_if_many(many: Sized, work: Callable[[], T]) -> T:
    """Process many items in a thread, and few inline."""
    return work() if len(many) <= _MAX_ITEMS_INLINE else await asyncio.to_thread(work)


async def _load_history(
    request: CreateResponse, owner: Owner, store: Store, recent: RecentResponses
) -> tuple[list[Raw], bool]:
    """The items before the request, and whether they are stored."""
    if (previous := request.previous_response_id) is not None:
        if (remembered := await recent.history(previous)) is not None:
            return remembered, False
        chain = await store.history(owner, previous)
        if chain is None:
            message = f"Previous response with id '{previous}' not found."
            raise ApiError(400, message, code="previous_response_not_found", param="previous_response_id")
        return chain, True
    if (conversation := request.conversation_id) is not None:
        found = await store.all_items(owner, conversation)
        if found is None:
            raise not_found("Conversation", conversation, param="conversation")
        return found, True
    return [], True


def _ids(stored: Iterable[Raw]) -> set[str]:
    """The ids of stored items. The id of an output of the local shell is that of its call."""
    return {raw["id"] for raw in stored if isinstance(raw.get("id"), str) and raw.get("type") not in SAME_ID_AS_CALL}


def _uncompacted(given: Sequence[Item]) -> Sequence[Item]:
    """The items after the last compaction item. It replaces what is before it, so that is not read twice."""
    last = max((at for at, item in enumerate(given) if item.type == "compaction"), default=-1)
    return given[last + 1 :]


async def _resolve(given: list[Item], owner: Owner, store: Store, param: str) -> list[Item]:
    """Replace references by the items that they name, and add the outputs of stored calls. One query for all."""
    wanted = [_referenced_id(item) for item in given]
    ids = [identifier for identifier in wanted if identifier is not None]
    ids += [item.id for item in given if item.id is not None and _lacks_outputs(item)]
    if not ids:
        return given
    found = await store.find_items(owner, ids)
    for at, identifier in enumerate(wanted):
        if identifier is not None and identifier not in found:
            message = f"Item with id '{identifier}' not found. Items are not persisted when `store` is set to false."
            raise ApiError(404, message, param=f"{param}[{at}]")
    return [
        items.read(found[identifier]) if identifier is not None else _with_outputs(item, found.get(item.id or ""))
        for item, identifier in zip(given, wanted, strict=True)
    ]


def _lacks_outputs(item: Item) -> bool:
    if item.type == "web_search_call":
        return item.raw.get("results") is None
    return isinstance(item.known, GivenCodeCall) and item.known.outputs is None


def _with_outputs(item: Item, stored: Raw | None) -> Item:
    """A hosted call without outputs, with those of the stored call: the client did not `include` them.

    A client may have changed the call; then the stored outputs are not its outputs.
    """
    if stored is None or not _lacks_outputs(item) or items.kind_of(stored) != item.type:
        return item
    if item.type == "web_search_call":
        is_same, name = _without_sources(stored) == _without_sources(item.raw), "results"
    else:
        is_same, name = all(stored.get(name) == item.raw.get(name) for name in ("container_id", "code")), "outputs"
    return items.read({**item.raw, name: stored[name]}) if is_same and stored.get(name) is not None else item


def _without_sources(call: Raw) -> Raw:
    """What a web search did."""
    action = cast("Raw", call.get("action")) if isinstance(call.get("action"), dict) else {}
    return {name: value for name, value in action.items() if name != "sources" and value is not None}


def _referenced_id(item: Item) -> str | None:
    """The id of the stored item that this one refers to: an `item_reference`, or reasoning without content."""
    known = item.known
    if isinstance(known, ItemReference):
        return known.id
    if isinstance(known, GivenReasoning) and not (known.summary or known.content or known.encrypted_content):
        return item.id if isinstance(item.id, str) else None
    return None


def _normalized(item: Item) -> Item:
    """The item with an id and a status, and a message with content parts."""
    raw = items.with_status(item_without_secrets(item.raw))
    if isinstance(item.known, GivenMessage) and isinstance(raw.get("content"), str):
        raw = {**raw, "content": [_part(item.known.role, raw["content"])]}
    if not (isinstance(raw.get("id"), str) and raw["id"]):
        raw = {**raw, "id": new_item_id(item.type)}
    if isinstance(item.known, (AdditionalTools, ToolSearchOutput)):
        return Item({**raw, "type": item.type}, item.known)  # the tools of this response have their secrets
    return item if raw is item.raw else items.read({**raw, "type": item.type})


def _normalized_input(item: Item) -> Item:
    """The same, but a compaction item without an id keeps none.

    It is for the upstream, because opening set the ids of the others. Its encrypted content is bound to the id that the
    client removed, so the upstream would refuse it with a new one.
    """
    return item if item.type == "compaction" and not item.id else _normalized(item)


def _part(role: str, text: str) -> dict[str, Any]:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}


def check_outputs(context: Context) -> None:
    """`ApiError` 400 for an output whose call is not in the history."""
    called = {item.call_id for item in context.history if item.type.endswith("_call")}
    for item in context.visible:
        is_hosted_search = item.type == "tool_search_output" and item.call_id is None
        if item.is_output and not is_hosted_search and item.call_id not in called:
            kind = item.type.removesuffix("_output").replace("_", " ")
            message = f"No tool call found for {kind} output with call_id {item.call_id}."
            raise invalid(message, param="input", code=None)
