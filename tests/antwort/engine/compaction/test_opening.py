from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from fixtures_compaction import function_call, function_output, message, raws
from fixtures_sealing import new_sealer, tenant_sealer

from antwort.api import items
from antwort.api.errors import ApiError
from antwort.api.items import Item
from antwort.engine.compaction.opening import (
    OpenedHistory,
    SealedReasoning,
    SealedWindow,
    TenantSealer,
    is_request_message,
    message_digest,
    open_history,
)
from antwort.engine.ports import ChosenModel, CompactedHistory, ModelRequest
from antwort.models.scripted.model import Scripted
from antwort.models.scripted.script import parse_script
from antwort.sealing import Sealer, Unsealed

pytestmark = pytest.mark.anyio

SEALER = tenant_sealer()
SCRIPTED = Scripted(parse_script("answers: []"))
MODEL = ChosenModel("m", SCRIPTED, "m")
UNDECRYPTABLE = "Encrypted content could not be decrypted or parsed."


class CompactingUpstream:
    """An upstream that compacts by itself, or not."""

    def __init__(self, *, supported: bool) -> None:
        self.supported = supported
        self.asked = 0

    async def is_supported(self) -> bool:
        self.asked += 1
        return self.supported

    async def compact(self, request: ModelRequest) -> CompactedHistory:
        raise NotImplementedError


def compaction(
    *window: Item, identifier: str = "cmp_1", known: list[str] | None = None, sealer: TenantSealer = SEALER
) -> Item:
    token = sealer.seal(identifier, SealedWindow(raws(window), known))
    return items.read({"type": "compaction", "id": identifier, "encrypted_content": token})


def sealed_reasoning(text: str, identifier: str = "rs_1", **fields: Any) -> Item:
    token = SEALER.seal(identifier, SealedReasoning(text))
    return items.read({"type": "reasoning", "id": identifier, "summary": [], "encrypted_content": token, **fields})


async def opened(before: list[Item], given: list[Item], model: ChosenModel = MODEL) -> list[dict[str, Any]]:
    history = await open_history(before, given, SEALER, model)
    return raws([*history.before, *history.given[history.start :]])


async def refusal(*given: Item, before: tuple[Item, ...] = (), model: ChosenModel = MODEL) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await open_history(before, given, SEALER, model)
    assert (caught.value.status, caught.value.code) == (400, "invalid_encrypted_content")
    return caught.value


async def test_a_history_without_encrypted_items_is_unchanged():
    before, given = [message("a")], [message("b"), function_call("c")]

    assert await opened(before, given) == raws([*before, *given])


async def test_a_compaction_item_replaces_everything_before_it():
    item = compaction(message("window"))

    assert await opened([message("a"), item, message("b")], [message("c")]) == raws(
        [message("window"), message("b"), message("c")]
    )
    assert await opened([message("a")], [message("b"), item, message("c")]) == raws([message("window"), message("c")])
    assert await opened([], [item]) == raws([message("window")])


async def test_only_the_last_compaction_counts():
    first, second = compaction(message("one")), compaction(message("two"), identifier="cmp_2")

    assert await opened([message("a"), first, message("b"), second], [message("c")]) == raws(
        [message("two"), message("c")]
    )
    assert await opened([first], [message("b"), second, message("c")]) == raws([message("two"), message("c")])
    assert await opened([second], [first, message("c")]) == raws([message("one"), message("c")])


async def test_all_items_of_the_request_are_kept_for_the_store():
    given = [message("a"), compaction(message("window")), message("b")]
    history = await open_history([], given, SEALER, MODEL)

    assert raws(history.given) == raws(given)
    assert history.start == 2


async def test_messages_that_a_client_added_before_the_item_stay():
    old, new, rule = message("old"), message("new"), message("New rule.", "developer")
    answer = message("answer", "assistant")
    item = compaction(message("window"), known=[message_digest(old)])

    assert await opened([], [rule, old, answer, new, item, message("next")]) == raws(
        [rule, new, message("window"), message("next")]
    )


async def test_instructions_that_are_sent_again_after_the_item_are_seen_once():
    rule, other = message("Rule.", "developer"), message("Other rule.", "system")
    item = compaction(rule, other, message("window"))

    assert await opened([], [item, rule, message("next")]) == raws([other, message("window"), rule, message("next")])


async def test_instructions_that_a_client_sends_again_replace_those_of_the_window():
    kept, dropped, new = (message(text, "developer") for text in ("Kept rule.", "Dropped rule.", "New rule."))
    item = compaction(kept, dropped, message("window"), known=[message_digest(kept), message_digest(dropped)])

    assert await opened([], [new, kept, item]) == raws([new, kept, message("window")])
    assert await opened([], [new, item]) == raws([new, kept, dropped, message("window")])
    assert await opened([], [item]) == raws([kept, dropped, message("window")])


async def test_instructions_that_a_client_repeats_are_seen_once():
    rule = message("Rule.", "developer")
    item = compaction(rule, message("window"), known=[message_digest(rule)])

    assert await opened([], [rule, message("x", "assistant"), rule, rule, item]) == raws([rule, message("window")])


async def test_earlier_compaction_items_of_a_request_are_verified_but_not_opened(monkeypatch):
    earlier = [compaction(message("old"), identifier=f"cmp_{number}") for number in range(5)]
    last = compaction(message("window"), identifier="cmp_last")
    opened_ids: list[str | None] = []
    open_token = Sealer.open

    def counting(self: Sealer, tenant: str, item_id: str | None, token: str) -> Unsealed:
        opened_ids.append(item_id)
        return open_token(self, tenant, item_id, token)

    monkeypatch.setattr(Sealer, "open", counting)

    assert await opened([], [*earlier, last]) == raws([message("window")])
    assert opened_ids == ["cmp_last"]


async def test_large_windows_can_be_opened_in_a_thread():
    threads: list[int] = []

    async def in_thread(work: Callable[[], OpenedHistory]) -> OpenedHistory:
        threads.append(1)
        return work()

    await open_history([message("a")], [message("b")], SEALER, MODEL, in_thread)
    assert threads == []
    await open_history([message("a")], [compaction(message("window"))], SEALER, MODEL, in_thread)
    assert threads == [1]


async def test_items_before_the_compaction_of_an_upstream_are_not_sent_to_it_again():
    model = msgspec.structs.replace(MODEL, compaction=CompactingUpstream(supported=True))
    item = items.read({"type": "compaction", "id": "cmp_9", "encrypted_content": "of the upstream"})
    stored = [
        message("rule", "developer"),
        message("question"),
        message("answer", "assistant"),
        function_call("old"),
        function_output("old"),
        function_call("open"),
        item,
        message("later", "assistant"),
    ]

    assert await opened(stored, [function_output("open")], model) == raws(
        [stored[0], stored[1], stored[5], item, stored[7], function_output("open")]
    )


async def test_an_open_call_that_is_sent_again_after_the_item_is_seen_once():
    pair, waiting = [function_call("done"), function_output("done")], function_call("open")
    item = compaction(message("window"), *pair, waiting)
    later = [waiting, function_output("open")]

    assert await opened([], [item, *later]) == raws([message("window"), *pair, *later])
    assert await opened([], [item, *pair]) == raws([message("window"), *pair, waiting, *pair])


async def test_triggers_of_earlier_requests_are_not_shown_to_a_model():
    trigger = items.read({"type": "compaction_trigger", "id": "cmp_0"})

    assert await opened([message("a"), trigger], [message("b")]) == raws([message("a"), message("b")])
    assert await opened([message("a"), trigger, compaction(message("window")), trigger], []) == raws(
        [message("window")]
    )


async def test_an_item_without_id_gets_that_of_its_token():
    item = compaction(message("window"))
    without = items.read({name: value for name, value in item.raw.items() if name != "id"})
    empty = items.read({**item.raw, "id": ""})
    for given in (without, empty):
        history = await open_history([], [given], SEALER, MODEL)
        assert raws(history.given) == [item.raw]
        assert raws(history.before) == raws([message("window")])


async def test_a_window_may_have_calls_that_wait_for_their_output():
    window = [message("q"), function_call("c")]

    assert await opened([compaction(*window)], [function_output("c")]) == raws([*window, function_output("c")])


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def changed(item: Item, **fields: Any) -> Item:
    return items.read({**item.raw, **fields})


async def test_a_token_of_another_item_tenant_or_server_is_refused():
    item = compaction(message("window"))
    other_tenant = compaction(message("window"), sealer=TenantSealer(SEALER.sealer, "other"))
    other_server = compaction(message("window"), sealer=TenantSealer(new_sealer(), SEALER.tenant))

    wrong = await refusal(changed(item, id="cmp_2"))
    assert wrong.message == (
        "The encrypted content for item cmp_2 could not be verified. "
        "Reason: Encrypted content item_id did not match the target item id."
    )
    for foreign in (other_tenant, other_server):
        error = await refusal(foreign)
        assert error.message == (f"The encrypted content for item cmp_1 could not be verified. Reason: {UNDECRYPTABLE}")


@pytest.mark.parametrize("change", ["truncated", "extended", "flipped", "foreign", "empty", "prefix", "space"])
async def test_a_changed_token_is_refused(change):
    token = compaction(message("window")).raw["encrypted_content"]
    flipped = token[:40] + ("A" if token[40] != "A" else "B") + token[41:]
    tokens = {
        "truncated": token[:-8],
        "extended": token + "AAAA",
        "flipped": flipped,
        "foreign": "gAAAAABnot-of-this-server",
        "empty": "",
        "prefix": "antwort1.",
        "space": token + " ",
    }
    item = items.read({"type": "compaction", "id": "cmp_1", "encrypted_content": tokens[change]})

    assert (await refusal(item)).message.endswith(UNDECRYPTABLE)
    assert (await refusal(before=(item,))).message.endswith(UNDECRYPTABLE)


async def test_an_error_about_an_item_without_id_names_none():
    item = items.read({"type": "compaction", "encrypted_content": "antwort1.x"})

    assert (await refusal(item)).message == f"The encrypted content could not be verified. Reason: {UNDECRYPTABLE}"


async def test_the_kinds_of_tokens_are_not_interchangeable():
    window, thought = compaction(message("window"), identifier="x_1"), sealed_reasoning("thought", "x_1")

    for wrong in (
        changed(window, encrypted_content=thought.raw["encrypted_content"]),
        changed(thought, encrypted_content=window.raw["encrypted_content"]),
    ):
        assert (await refusal(wrong)).message.endswith(UNDECRYPTABLE)


async def test_a_token_with_another_content_is_refused():
    token = SEALER.sealer.seal(SEALER.tenant, "cmp_1", msgspec.json.encode({"kind": "of the future"}))

    assert (await refusal(items.read({"type": "compaction", "id": "cmp_1", "encrypted_content": token}))).status == 400


async def test_every_item_of_the_request_is_verified_also_a_replaced_one():
    forged = items.read({"type": "compaction", "id": "cmp_0", "encrypted_content": "antwort1.forged"})

    assert "cmp_0" in (await refusal(forged, compaction(message("window")))).message


# ── items of other servers ───────────────────────────────────────────────────────────────────────────────────────────


FOREIGN = items.read({"type": "compaction", "id": "cmp_9", "encrypted_content": "gAAAAAB-foreign"})


async def test_foreign_items_are_left_to_an_upstream_that_compacts():
    upstream = CompactingUpstream(supported=True)
    model = ChosenModel("m", SCRIPTED, "m", compaction=upstream)
    given = [message("a"), FOREIGN, message("b")]

    assert await opened([], given, model) == raws(given)
    assert await opened(given, [message("c")], model) == raws([*given, message("c")])
    assert upstream.asked == 2
    assert await opened([], [message("a")], model) == raws([message("a")])
    assert upstream.asked == 2  # it is asked only if there is such an item


async def test_foreign_items_are_refused_if_the_upstream_does_not_compact():
    model = ChosenModel("m", SCRIPTED, "m", compaction=CompactingUpstream(supported=False))

    assert "cmp_9" in (await refusal(FOREIGN, model=model)).message
    assert "cmp_9" in (await refusal(message("b"), before=(FOREIGN,), model=model)).message


async def test_a_stored_foreign_item_after_an_own_one_is_refused():
    assert "cmp_9" in (await refusal(before=(compaction(message("window")), message("a"), FOREIGN))).message


async def test_a_replaced_foreign_item_of_the_store_does_no_harm():
    assert await opened([FOREIGN, compaction(message("window"))], [message("b")]) == raws(
        [message("window"), message("b")]
    )


# ── reasoning ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_encrypted_reasoning_is_opened_with_and_without_id_content_and_summary():
    item = sealed_reasoning("because")
    content = [{"type": "reasoning_text", "text": "because"}]
    expected = {**item.raw, "content": content}
    bare = {"type": "reasoning", "encrypted_content": item.raw["encrypted_content"]}
    for raw in (item.raw, bare, {**item.raw, "content": [{"type": "reasoning_text", "text": "forged"}]}):
        assert await opened([], [items.read(raw)]) == [expected]


async def test_forged_and_foreign_reasoning_is_refused_unless_the_backend_encrypts_it():
    foreign = items.read({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA-foreign"})
    token = sealed_reasoning("because").raw["encrypted_content"]
    forged = changed(foreign, encrypted_content=token[:-8])
    swapped = changed(sealed_reasoning("because"), id="rs_2")
    encrypting = ChosenModel("m", SCRIPTED, "m", encrypts_reasoning=True)

    for item in (foreign, forged, swapped):
        await refusal(item)
    for item in (forged, swapped):
        await refusal(item, model=encrypting)
    assert await opened([], [foreign], encrypting) == [foreign.raw]


async def test_a_backend_that_encrypts_reasoning_does_not_get_the_tokens_of_this_server():
    encrypting = ChosenModel("m", SCRIPTED, "m", encrypts_reasoning=True)
    item = sealed_reasoning("because", content=[{"type": "reasoning_text", "text": "because"}])
    expected = {**item.raw, "encrypted_content": None}

    assert await opened([item], [item], encrypting) == [expected, expected]


async def test_reasoning_without_encrypted_content_is_unchanged():
    item = items.read({"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "x"}]})

    assert await opened([], [item]) == [item.raw]


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_request_messages_are_those_of_users_and_instructions():
    roles = ("user", "system", "developer", "assistant")

    assert [is_request_message(message("x", role)) for role in roles] == [True, True, True, False]
    assert not is_request_message(function_call("c"))


def test_a_digest_depends_on_role_and_content_and_not_on_the_form():
    text = items.read({"role": "user", "content": "hello"})
    same = message("hello", id="msg_1", status="completed")
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA"}
    document = {"type": "input_file", "file_id": "file-1"}

    def with_part(part: dict[str, Any]) -> Item:
        return items.read({"role": "user", "content": [{"type": "input_text", "text": "hello"}, part]})

    digests = [
        message_digest(text),
        message_digest(message("hello", "developer")),
        message_digest(message("hello ")),
        message_digest(with_part(image)),
        message_digest(with_part({**image, "image_url": "data:image/png;base64,BB"})),
        message_digest(with_part(document)),
    ]
    assert message_digest(text) == message_digest(same)
    assert len(set(digests)) == len(digests)
