"""What a request's history is: the chain or conversation before it, then its own input, references resolved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Any, TypeVar

from antwort.api import items
from antwort.api.errors import ApiError, invalid, not_found
from antwort.api.ids import Prefix, new_id
from antwort.api.items import GivenReasoning, Item, ItemReference
from antwort.api.requests import CreateResponse, read_input
from antwort.api.secrets import item_without_secrets
from antwort.engine.stores import Owner, Store

T = TypeVar("T")

_AT_ONCE = 256
"""Items that are read where they came. To read more takes long enough that others would notice."""

_PREFIXES: dict[str, Prefix] = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "function_call_output": "fc_",
    "custom_tool_call": "ctc_",
    "custom_tool_call_output": "ctc_",
    "code_interpreter_call": "ci_",
    "file_search_call": "fs_",
    "web_search_call": "ws_",
    "shell_call": "sh_",
    "shell_call_output": "sho_",
    "apply_patch_call": "apc_",
    "apply_patch_call_output": "apc_",
    "compaction": "cmp_",
}


@dataclass(frozen=True)
class Context:
    """What the model is shown, and which part of it this request brought."""

    before: list[Item]
    given: list[Item]

    @property
    def history(self) -> list[Item]:
        return [*self.before, *self.given]


async def gather(request: CreateResponse, owner: Owner, store: Store) -> Context:
    """Put the history together. What is missing or not the owner's is an error that says which."""
    before = await _before(request, owner, store)
    said = request.input if isinstance(request.input, list) else ()
    read = await _aside(said, lambda: read_input(request.input))
    given = await take_in(read, owner, store, "input")
    return Context(await _aside(before, lambda: [items.read(raw) for raw in before]), given)


async def take_in(given: list[Item], owner: Owner, store: Store, param: str) -> list[Item]:
    """Items as they are stored: references resolved, each with an id, messages with parts. They came as `param`."""
    resolved = await _resolved(given, owner, store, param)
    return await _aside(resolved, lambda: [_whole(item) for item in resolved])


async def _aside(many: Sized, work: Callable[[], T]) -> T:
    """Do something with each of these; in a thread, where they are many."""
    return work() if len(many) <= _AT_ONCE else await asyncio.to_thread(work)


async def _before(request: CreateResponse, owner: Owner, store: Store) -> list[dict[str, Any]]:
    if (previous := request.previous_response_id) is not None:
        chain = await store.history(owner, previous)
        if chain is None:
            raise ApiError(
                400,
                f"Previous response with id '{previous}' not found.",
                code="previous_response_not_found",
                param="previous_response_id",
            )
        return chain
    if (conversation := request.conversation_id) is not None:
        said = await store.all_items(owner, conversation)
        if said is None:
            raise not_found("Conversation", conversation, param="conversation")
        return said
    return []


async def _resolved(given: list[Item], owner: Owner, store: Store, param: str) -> list[Item]:
    """Items in the place of references to them."""
    wanted = [_referred_to(item) for item in given]
    ids = [identifier for identifier in wanted if identifier is not None]
    if not ids:
        return given
    found = await store.find_items(owner, ids)
    for at, identifier in enumerate(wanted):
        if identifier is not None and identifier not in found:
            raise ApiError(
                404,
                f"Item with id '{identifier}' not found. Items are not persisted when `store` is set to false.",
                param=f"{param}[{at}]",
            )
    return [item if i is None else items.read(found[i]) for item, i in zip(given, wanted, strict=True)]


def _referred_to(item: Item) -> str | None:
    """The id of the stored item that this one stands for: a reference does, and reasoning that holds nothing."""
    known = item.known
    if isinstance(known, ItemReference):
        return known.id
    if isinstance(known, GivenReasoning) and not (known.summary or known.content or known.encrypted_content):
        return item.id if isinstance(item.id, str) else None
    return None


def _whole(item: Item) -> Item:
    """Every stored item has an id, also one that came without, and every message has parts and a status."""
    raw = item_without_secrets(item.raw)
    if item.type == "message" and isinstance(raw.get("content"), str):
        raw = {**raw, "status": "completed", "content": [_part(raw["role"], raw["content"])]}
    if not isinstance(raw.get("id"), str) or not raw["id"]:
        raw = {**raw, "id": new_id(_PREFIXES.get(item.type, "msg_"))}
    return item if raw is item.raw else items.read({**raw, "type": item.type})


def _part(role: str, text: str) -> dict[str, Any]:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}


def check_outputs(context: Context) -> None:
    """An answer to a call that nobody made would only confuse the model."""
    made = {item.call_id for item in context.history if item.type.endswith("_call")}
    for item in context.given:
        if item.type.endswith("_call_output") and item.call_id not in made:
            kind = item.type.removesuffix("_output").replace("_", " ")
            raise invalid(
                f"No tool call found for {kind} output with call_id {item.call_id}.",
                param="input",
                code=None,
            )
