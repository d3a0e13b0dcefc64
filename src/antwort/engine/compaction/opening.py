"""Encrypted items of a history: opens compaction and reasoning items, and applies the last compaction.

A compaction item contains the window that replaces the history before it. Only the last one counts. If a client keeps
the history itself, it may have added messages before the item, such as new instructions: these stay. If it sends its
instructions again after the item, a model sees them only there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Struct

from antwort.api import items
from antwort.api.errors import ApiError, invalid
from antwort.api.items import (
    AdditionalTools,
    GivenCompaction,
    GivenMessage,
    GivenReasoning,
    InputFile,
    InputImage,
    Item,
    Part,
    Raw,
)
from antwort.engine.declared.tools import merged_tools
from antwort.engine.ports import ChosenModel
from antwort.sealing import InvalidSeal, Sealer

_UNDECRYPTABLE = "Encrypted content could not be decrypted or parsed."
_REASONS = {
    "undecryptable": _UNDECRYPTABLE,
    "wrong_item": "Encrypted content item_id did not match the target item id.",
}


class SealedWindow(Struct, tag_field="kind", tag="window"):
    """The content of a compaction item: the items that a model sees in place of the history before it."""

    items: list[Raw]
    known_messages: list[str] | None = None
    """Digests of the messages that were compacted, if the client keeps the history. None: all items before the
    compaction item are replaced."""


class SealedReasoning(Struct, tag_field="kind", tag="reasoning"):
    """The encrypted content of a reasoning item."""

    text: str


SealedContent: TypeAlias = SealedWindow | SealedReasoning
_T = TypeVar("_T", SealedWindow, SealedReasoning)
_decoder = msgspec.json.Decoder(SealedContent)


@dataclass(frozen=True)
class TenantSealer:
    """Seals and opens the items of one tenant."""

    sealer: Sealer
    tenant: str

    def seal(self, item_id: str, content: SealedContent) -> str:
        """The `encrypted_content` of an item."""
        return self.sealer.seal(self.tenant, item_id, msgspec.json.encode(content))

    def is_own(self, token: str) -> bool:
        """Whether this server made the token, by its format."""
        return self.sealer.is_own(token)

    def open(self, item: Item, token: str, kind: type[_T]) -> tuple[str, _T]:
        """The id that the item was sealed with, and its content; `ApiError` 400 if it cannot be opened."""
        with _invalid_seals(item):
            unsealed = self.sealer.open(self.tenant, item.id or None, token)
        try:
            content = _decoder.decode(unsealed.content)
        except msgspec.MsgspecError as error:
            raise invalid_encrypted_content(item.id, _UNDECRYPTABLE) from error
        if not isinstance(content, kind):
            raise invalid_encrypted_content(item.id, _UNDECRYPTABLE)
        return unsealed.item_id, content

    def verify(self, item: Item, token: str) -> str:
        """The id that the item was sealed with; `ApiError` 400 if the token is not valid. Does not read the content."""
        with _invalid_seals(item):
            return self.sealer.verify(self.tenant, item.id or None, token)


@contextmanager
def _invalid_seals(item: Item) -> Generator[None]:
    try:
        yield
    except InvalidSeal as invalid:
        raise invalid_encrypted_content(item.id, _REASONS.get(invalid.reason, _UNDECRYPTABLE)) from invalid


def invalid_encrypted_content(item_id: str | None, reason: str) -> ApiError:
    """400, with OpenAI's message."""
    named = f" for item {item_id}" if item_id else ""
    message = f"The encrypted content{named} could not be verified. Reason: {reason}"
    return ApiError(400, message, code="invalid_encrypted_content")


class OpenedHistory(NamedTuple):
    """A history with its encrypted items opened.

    `given` are all items of the request; those from `start` on are visible to a model, and so is all of `before`.
    """

    before: list[Item]
    given: list[Item]
    start: int = 0


def check_items(given: Sequence[Item], sealer: TenantSealer, param: str, *, reads_foreign: bool) -> None:
    """`ApiError` 400 for items that no later request with the same history could use."""
    for at, item in enumerate(given):
        if item.type == "compaction_trigger":
            message = "An item of type 'compaction_trigger' must be the last input item of a request for a response."
            raise invalid(message, param=f"{param}[{at}]")
        if isinstance(item.known, GivenCompaction):
            if sealer.is_own(item.known.encrypted_content):
                sealer.verify(item, item.known.encrypted_content)
            elif not reads_foreign:
                raise invalid_encrypted_content(item.id, _UNDECRYPTABLE)


async def open_history(
    before: Sequence[Item],
    given: Sequence[Item],
    sealer: TenantSealer,
    model: ChosenModel,
    in_thread: Callable[[Callable[[], OpenedHistory]], Awaitable[OpenedHistory]] | None = None,
) -> OpenedHistory:
    """Open the encrypted items. An item that cannot be opened is an `ApiError` 400.

    Items of another server are left to a model whose upstream understands them. A window may be large: with `in_thread`
    the items are opened there.
    """
    encrypted = [item for item in (*before, *given) if _encrypted_content(item)]
    reads_foreign = False
    if any(_is_foreign(item, sealer) for item in encrypted):
        reads_foreign = model.compaction is not None and await model.compaction.is_supported()

    def work() -> OpenedHistory:
        return _open(before, given, sealer, model, reads_foreign=reads_foreign)

    return work() if in_thread is None or not encrypted else await in_thread(work)


def _open(
    before: Sequence[Item], given: Sequence[Item], sealer: TenantSealer, model: ChosenModel, *, reads_foreign: bool
) -> OpenedHistory:
    opened = [_open_given(item, sealer, model, reads_foreign=reads_foreign) for item in given]
    whole = [item for item in before if item.type != "compaction_trigger"]
    if model.encrypts_reasoning:
        whole, opened = ([_without_own_seal(item, sealer) for item in part] for part in (whole, opened))
    last = _last_own([*whole, *opened], sealer)
    if not reads_foreign:  # those of this request were checked above; a stored one may need a key that was dropped
        visible = whole if last is None else whole[last + 1 :]
        if (foreign := next((item for item in visible if _is_foreign(item, sealer)), None)) is not None:
            raise invalid_encrypted_content(foreign.id, _UNDECRYPTABLE)
    if last is None:
        return OpenedHistory(_pruned(whole, opened, sealer), opened)
    split = last - len(whole)
    window = _window([*whole, *opened][: last + 1], sealer)
    if split < 0:
        return OpenedHistory([*window, *_pruned(whole[last + 1 :], opened, sealer)], opened)
    return OpenedHistory(_without_repeated(window, opened[split + 1 :]), opened, split + 1)


def _pruned(stored: Sequence[Item], given: Sequence[Item], sealer: TenantSealer) -> list[Item]:
    """Stored items without those that the last compaction of an upstream has replaced.

    Messages of the user and instructions stay, because not every compaction contains them, and so do tools, and calls
    whose outputs come later.
    """
    last = max((index for index, item in enumerate(stored) if _is_foreign(item, sealer)), default=0)
    tools = merged_tools(stored[:last])
    answered = {item.call_id for item in (*stored[last:], *given) if item.is_output}
    kept = [
        item
        for index, item in enumerate(stored)
        if index >= last or is_request_message(item) or (item.type.endswith("_call") and item.call_id in answered)
    ]
    return kept if tools is None else [tools, *kept]


def _encrypted_content(item: Item) -> str | None:
    known = item.known
    return known.encrypted_content if isinstance(known, (GivenCompaction, GivenReasoning)) else None


def _without_own_seal(item: Item, sealer: TenantSealer) -> Item:
    """Reasoning without the encrypted content of this server, for a model whose backend would refuse it."""
    known = item.known
    if not isinstance(known, GivenReasoning) or not sealer.is_own(known.encrypted_content or ""):
        return item
    return items.read({**item.raw, "encrypted_content": None})


def _last_own(history: Sequence[Item], sealer: TenantSealer) -> int | None:
    for index in range(len(history) - 1, -1, -1):
        known = history[index].known
        if isinstance(known, GivenCompaction) and sealer.is_own(known.encrypted_content):
            return index
    return None


def _is_foreign(item: Item, sealer: TenantSealer) -> bool:
    return isinstance(item.known, GivenCompaction) and not sealer.is_own(item.known.encrypted_content)


def _window(history: Sequence[Item], sealer: TenantSealer) -> list[Item]:
    """The items that a model sees in place of a history that ends with a compaction item.

    If the client keeps the history, messages that the compaction has not seen stay. If it sends instructions again,
    these replace those of the window, because it may have changed some.
    """
    item = history[-1]
    _, window = sealer.open(item, cast("GivenCompaction", item.known).encrypted_content, SealedWindow)
    opened = [items.read(raw) for raw in window.items]
    if window.known_messages is None:
        return opened
    known = frozenset(window.known_messages)
    messages = {message_digest(item): item for item in history[:-1] if is_request_message(item)}
    resends = any(_is_instruction(item) and digest in known for digest, item in messages.items())
    added = [item for digest, item in messages.items() if digest not in known or (resends and _is_instruction(item))]
    tools = [item for item in opened if isinstance(item.known, AdditionalTools)]
    sent_tools = [item for item in history[:-1] if isinstance(item.known, AdditionalTools)]  # newer than the window's
    rest = (item for item in opened if not isinstance(item.known, AdditionalTools))
    return [*tools, *sent_tools, *added, *(item for item in rest if not (resends and _is_instruction(item)))]


def _without_repeated(window: Sequence[Item], later: Sequence[Item]) -> list[Item]:
    """The window without instructions, and calls that wait for their output, that follow it again."""
    repeated = {message_digest(item) for item in later if _is_instruction(item)}
    calls = {item.call_id for item in later if item.call_id and item.type.endswith("_call")}
    calls -= {item.call_id for item in window if item.is_output}
    return [
        item
        for item in window
        if not (_is_instruction(item) and message_digest(item) in repeated)
        and not (item.type.endswith("_call") and item.call_id in calls)
    ]


def _open_given(item: Item, sealer: TenantSealer, model: ChosenModel, *, reads_foreign: bool) -> Item:
    known = item.known
    if isinstance(known, GivenCompaction):
        if sealer.is_own(known.encrypted_content):
            item_id = sealer.verify(item, known.encrypted_content)  # only the last one is opened
            return item if item.id else items.read({**item.raw, "id": item_id})
        if not reads_foreign:
            raise invalid_encrypted_content(item.id, _UNDECRYPTABLE)
    elif isinstance(known, GivenReasoning) and known.encrypted_content:
        if sealer.is_own(known.encrypted_content):
            item_id, reasoning = sealer.open(item, known.encrypted_content, SealedReasoning)
            content = [{"type": "reasoning_text", "text": reasoning.text}]
            return items.read({"summary": [], **item.raw, "id": item_id, "content": content})
        if not model.encrypts_reasoning:
            raise invalid_encrypted_content(item.id, _UNDECRYPTABLE)
    return item


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def is_request_message(item: Item) -> bool:
    """Whether an item is a message of the user, or instructions (`system`, `developer`)."""
    return isinstance(item.known, GivenMessage) and item.known.role != "assistant"


def _is_instruction(item: Item) -> bool:
    return isinstance(item.known, GivenMessage) and item.known.role not in {"assistant", "user"}


def message_digest(item: Item) -> str:
    """A digest of the role and the content of a message. A string and one text part have the same digest."""
    message = cast("GivenMessage", item.known)
    content = [message.content] if isinstance(message.content, str) else list(_part_values(message.content))
    return hashlib.sha256(msgspec.json.encode([message.role, content])).hexdigest()[:24]


def _part_values(parts: Iterable[Part]) -> Iterable[Any]:
    for part in parts:
        match part:
            case InputImage():
                yield part.source_url or part.image_url or part.file_id
            case InputFile():
                yield part.file_id or part.file_url or part.source_url or part.file_data
            case _:
                yield part.refusal if isinstance(part, items.Refusal) else part.text
