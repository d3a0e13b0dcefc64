"""Conformance tests for `ResponseStore`."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from antwort.api.responses import Conversation, Response, Usage
from antwort.engine.stores import (
    MAX_EVENT_READ_BYTES,
    ConversationRecord,
    PageQuery,
    ResponseTakenOver,
    Store,
    StoredResponse,
    StoredStep,
)
from antwort.testing.checks import check, check_equal, check_raises, not_none
from antwort.testing.store.base import OTHER_KEY, OTHER_TENANT, OWNER, Conformance, message
from antwort.testing.store.paging import LISTED_IDS, check_pages, check_unknown_cursor

CHAIN_LENGTH = 1000


def new_response(identifier: str, *items: dict[str, Any], **fields: object) -> StoredResponse:
    """A new response."""
    response = msgspec.structs.replace(Response(id=identifier, created_at=1, model="m"), **fields)
    return StoredResponse(response=response, input=list(items), request={"model": "m", "x": [1, {"y": None}]})


def completed(stored: StoredResponse, *output: dict[str, Any], **fields: object) -> Response:
    """The same response, completed."""
    return msgspec.structs.replace(stored.response, status="completed", output=list(output), **fields)


async def write_response(store: Store, identifier: str, previous: str | None = None) -> None:
    """Write a completed response with one input and one output item."""
    stored = new_response(identifier, message(f"in_{identifier}"), previous_response_id=previous)
    await store.begin_response(OWNER, stored)
    await store.finish_response(OWNER, completed(stored, message(f"out_{identifier}")))


async def history_ids(store: Store, identifier: str) -> list[str]:
    """The ids of the items of a history."""
    return [item["id"] for item in not_none(await store.history(OWNER, identifier))]


class ResponseConformance(Conformance):
    """Tests of responses, their items and events."""

    # ── Writing and reading ──────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_new_response_can_be_read_at_once(self, store: Store) -> None:
        stored = new_response("resp_1", message("msg_1"), metadata={"a": "b"}, instructions="grüße 🎈 \0")
        await store.begin_response(OWNER, stored)
        check_equal(await store.get_response(OWNER, "resp_1"), stored)

    async def test_a_finished_response_has_its_last_state(self, store: Store) -> None:
        stored = new_response("resp_1", message("msg_1"))
        await store.begin_response(OWNER, stored)
        for output in ([message("msg_2")], [message("msg_2", "changed"), {"type": "unknown", "n": 2**70}], []):
            ended = completed(stored, *output, usage=Usage(1, total_tokens=1))
            await store.finish_response(OWNER, ended)
            found = not_none(await store.get_response(OWNER, "resp_1"))
            check_equal(found, StoredResponse(response=ended, input=stored.input, request=stored.request))

    async def test_data_survives_reopening(self, tmp_path: Path) -> None:
        stored = new_response("resp_1", message("msg_1"))
        ended = completed(stored, message("msg_2"))
        async with self.opened_store(tmp_path) as store:
            await store.begin_response(OWNER, stored)
            await store.finish_response(OWNER, ended)
            await store.append_events(OWNER, "resp_1", [(0, b"zero")])
        async with self.opened_store(tmp_path) as store:
            check_equal(not_none(await store.get_response(OWNER, "resp_1")).response, ended)
            check_equal(await store.read_events(OWNER, "resp_1", -1), [(0, b"zero")])

    async def test_changes_after_the_call_are_not_stored(self, store: Store) -> None:
        stored = new_response("resp_1", message("msg_1"))
        writing = asyncio.ensure_future(store.begin_response(OWNER, stored))
        await asyncio.sleep(0)
        stored.response.model = "changed"
        stored.input[0]["role"] = "changed"
        await writing
        found = not_none(await store.get_response(OWNER, "resp_1"))
        check_equal((found.response.model, found.input[0]["role"]), ("m", "user"))

    async def test_beginning_a_response_again_replaces_it(self, store: Store) -> None:
        first, second = new_response("resp_1", message("msg_1")), new_response("resp_1", message("msg_2"))
        await store.begin_response(OWNER, first)
        await store.finish_response(OWNER, completed(first, message("msg_3")))
        await store.append_events(OWNER, "resp_1", [(0, b"zero")])
        await store.begin_response(OWNER, second)
        check_equal(await store.get_response(OWNER, "resp_1"), second)
        check_equal(await store.read_events(OWNER, "resp_1", -1), [])
        check_equal([*await store.find_items(OWNER, ["msg_1", "msg_2", "msg_3"])], ["msg_2"])

    async def test_concurrent_responses(self, store: Store) -> None:
        names = [f"resp_{number}" for number in range(100)]
        await asyncio.gather(*(write_response(store, name) for name in names))
        found = await asyncio.gather(*(history_ids(store, name) for name in names))
        check_equal(found, [[f"in_{name}", f"out_{name}"] for name in names])

    # ── Deleting ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_deleting_a_response_deletes_its_items_and_events(self, store: Store) -> None:
        await write_response(store, "1")
        await store.append_events(OWNER, "1", [(0, b"zero")])
        check(await store.delete_response(OWNER, "1"), "the response existed")
        check(not await store.delete_response(OWNER, "1"), "the response was already deleted")
        check_equal(await store.get_response(OWNER, "1"), None)
        check_equal(await store.history(OWNER, "1"), None)
        check_equal(await store.input_items(OWNER, "1", PageQuery()), None)
        check_equal(await store.find_items(OWNER, ["in_1", "out_1"]), {})
        check_equal(await store.read_events(OWNER, "1", -1), [])

    async def test_later_writes_do_not_restore_a_deleted_response(self, store: Store) -> None:
        stored = new_response("resp_1")
        await store.begin_response(OWNER, stored)
        await store.delete_response(OWNER, "resp_1")
        await store.finish_response(OWNER, completed(stored, message("msg_1")))
        await store.append_events(OWNER, "resp_1", [(0, b"zero")])
        check_equal(await store.get_response(OWNER, "resp_1"), None)
        check_equal(await store.find_items(OWNER, ["msg_1"]), {})
        check_equal(await store.read_events(OWNER, "resp_1", -1), [])

    # ── Chains ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_history_is_the_chain_oldest_first(self, store: Store) -> None:
        for name, previous in (("1", None), ("2", "1"), ("other", "1"), ("3", "2")):
            await write_response(store, name, previous)
        check_equal(await history_ids(store, "3"), ["in_1", "out_1", "in_2", "out_2", "in_3", "out_3"])
        check_equal(await history_ids(store, "other"), ["in_1", "out_1", "in_other", "out_other"])
        check_equal(await history_ids(store, "1"), ["in_1", "out_1"])
        check_equal(await store.history(OWNER, "unknown"), None)

    async def test_the_history_of_a_response_without_items_is_empty(self, store: Store) -> None:
        await store.begin_response(OWNER, new_response("resp_1"))
        check_equal(await store.history(OWNER, "resp_1"), [])

    async def test_a_history_starts_after_a_deleted_response(self, store: Store) -> None:
        for name, previous in (("1", None), ("2", "1"), ("3", "2")):
            await write_response(store, name, previous)
        await store.delete_response(OWNER, "2")
        check_equal(await history_ids(store, "3"), ["in_3", "out_3"])

    async def test_a_long_history(self, store: Store) -> None:
        begun = [new_response(f"{n}", message(f"in_{n}"), previous_response_id=f"{n - 1}") for n in range(CHAIN_LENGTH)]
        for stored in begun:  # as clients do: a chain continues a response that is stored
            await store.begin_response(OWNER, stored)
        check_equal(await history_ids(store, f"{CHAIN_LENGTH - 1}"), [f"in_{n}" for n in range(CHAIN_LENGTH)])

    async def test_a_response_that_refers_to_itself_has_a_finite_history(self, store: Store) -> None:
        await write_response(store, "1", "1")
        check_equal(await history_ids(store, "1"), ["in_1", "out_1"])

    # ── Items ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_input_items_are_paged(self, store: Store) -> None:
        stored = new_response("resp_1", *map(message, LISTED_IDS))
        await store.begin_response(OWNER, stored)
        await store.finish_response(OWNER, completed(stored, message("out_1")))
        await store.begin_response(OWNER, new_response("resp_2", message("other_response")))
        await check_pages(lambda query: store.input_items(OWNER, "resp_1", query), lambda item: item["id"])
        page = not_none(await store.input_items(OWNER, "resp_1", PageQuery(limit=1)))
        check_equal(page.data, [message(LISTED_IDS[-1])])
        for cursor in ("other_response", "out_1"):
            await check_unknown_cursor(lambda query: store.input_items(OWNER, "resp_1", query), PageQuery(after=cursor))
        check_equal(await store.input_items(OWNER, "unknown", PageQuery(after="unknown")), None)

    async def test_find_items_searches_responses_and_conversations(self, store: Store) -> None:
        await write_response(store, "1")
        await store.create_conversation(OWNER, ConversationRecord("conv_1", 1, {}), [message("msg_1")])
        found = await store.find_items(OWNER, ["msg_1", "out_1", "unknown", "in_1", "msg_1"])
        check_equal(found, {name: message(name) for name in ("msg_1", "out_1", "in_1")})
        check_equal(await store.find_items(OWNER, []), {})

    async def test_find_items_returns_the_newest_of_several_with_one_id(self, store: Store) -> None:
        await store.begin_response(OWNER, new_response("resp_1", message("msg_1", "old")))
        await store.begin_response(OWNER, new_response("resp_2", message("msg_1", "new")))
        check_equal(await store.find_items(OWNER, ["msg_1"]), {"msg_1": message("msg_1", "new")})
        await store.delete_response(OWNER, "resp_2")
        check_equal(await store.find_items(OWNER, ["msg_1"]), {"msg_1": message("msg_1", "old")})

    async def test_find_items_ignores_references(self, store: Store) -> None:
        await store.begin_response(OWNER, new_response("resp_1", message("msg_1")))
        references = [{"type": "item_reference", "id": "msg_1"}, {"id": "msg_1"}]
        await store.begin_response(OWNER, new_response("resp_2", *references))
        check_equal(await store.find_items(OWNER, ["msg_1"]), {"msg_1": message("msg_1")})

    # ── Conversations ────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_finishing_a_response_appends_to_its_conversation(self, store: Store) -> None:
        await store.create_conversation(OWNER, ConversationRecord("conv_1", 1, {}), [message("msg_0")])
        stored = new_response("resp_1", message("msg_1"), conversation=Conversation("conv_1"))
        ended = completed(stored, message("msg_2"))
        await store.begin_response(OWNER, stored)
        for _ in range(2):  # the second write changes nothing
            await store.finish_response(OWNER, ended, appended=[*stored.input, *ended.output])
            check_equal(await store.all_items(OWNER, "conv_1"), [message(f"msg_{n}") for n in range(3)])

    async def test_a_response_of_a_deleted_conversation_can_be_finished(self, store: Store) -> None:
        stored = new_response("resp_1", conversation=Conversation("conv_gone"))
        await store.begin_response(OWNER, stored)
        await store.finish_response(OWNER, completed(stored), appended=[message("msg_1")])
        check_equal(not_none(await store.get_response(OWNER, "resp_1")).response.status, "completed")
        check_equal(await store.find_items(OWNER, ["msg_1"]), {})

    # ── Events ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_events_are_read_after_a_sequence_number(self, store: Store) -> None:
        await store.begin_response(OWNER, new_response("resp_1"))
        await store.append_events(OWNER, "resp_1", [(0, b"zero"), (1, b"one\n\n")])
        await store.append_events(OWNER, "resp_1", [(2, b"\0\xff")])
        await store.append_events(OWNER, "resp_1", [])
        every = [(0, b"zero"), (1, b"one\n\n"), (2, b"\0\xff")]
        for after in range(-1, 4):
            check_equal(await store.read_events(OWNER, "resp_1", after), every[after + 1 :])
        check_equal(await store.read_events(OWNER, "unknown", -1), [])

    async def test_events_are_read_in_batches_limited_by_bytes(self, store: Store) -> None:
        await store.begin_response(OWNER, new_response("resp_1"))
        every = [(number, b"x" * (MAX_EVENT_READ_BYTES * 2 // 5)) for number in range(6)]
        every += [(6, b"y" * MAX_EVENT_READ_BYTES * 2), (7, b"z")]
        await store.append_events(OWNER, "resp_1", every)
        read: list[tuple[int, bytes]] = []
        sizes: list[int] = []
        while some := await store.read_events(OWNER, "resp_1", read[-1][0] if read else -1):
            read += some
            sizes.append(len(some))
        check_equal(read, every)
        check_equal(sizes, [3, 3, 1, 1])

    async def test_finishing_a_response_appends_its_last_events(self, store: Store) -> None:
        stored = new_response("resp_1")
        await store.begin_response(OWNER, stored)
        await store.append_events(OWNER, "resp_1", [(0, b"zero"), (1, b"one")])
        for _ in range(2):  # the second write changes nothing
            await store.finish_response(OWNER, completed(stored), events=[(1, b"one"), (2, b"two")])
            check_equal(await store.read_events(OWNER, "resp_1", -1), [(0, b"zero"), (1, b"one"), (2, b"two")])
        await store.finish_response(OWNER, completed(new_response("resp_0")), events=[(0, b"no response")])
        check_equal(await store.read_events(OWNER, "resp_0", -1), [])

    async def test_an_end_does_not_replace_another_one(self, store: Store) -> None:
        stored = new_response("resp_1", status="in_progress", background=True)
        await store.begin_response(OWNER, stored)
        cancelled = msgspec.structs.replace(stored.response, status="cancelled")
        await store.finish_response(OWNER, cancelled, events=[(0, b"cancelled")])
        await store.finish_response(OWNER, completed(stored, message("msg_1")), events=[(0, b"late"), (1, b"later")])
        await store.finish_response(OWNER, stored.response)
        check_equal(not_none(await store.get_response(OWNER, "resp_1")).response, cancelled)
        check_equal(await store.read_events(OWNER, "resp_1", -1), [(0, b"cancelled")])

    # ── Checkpoints ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_steps_are_stored_with_events_and_read_in_order(self, store: Store) -> None:
        await store.begin_response(OWNER, new_response("resp_1", background=True))
        steps = [StoredStep(number, 2 * number, f"step {number} \0\xff".encode()) for number in range(3)]
        await store.append_events(OWNER, "resp_1", [(0, b"zero")], steps[:1])
        await store.append_events(OWNER, "resp_1", [], steps[1:])
        for _ in range(2):  # the second write changes nothing
            await store.append_events(OWNER, "resp_1", [(1, b"one")], steps[2:])
            check_equal(await store.read_steps(OWNER, "resp_1"), steps)
        check_equal(await store.read_events(OWNER, "resp_1", -1), [(0, b"zero"), (1, b"one")])
        check_equal(await store.read_steps(OWNER, "unknown"), [])
        check_equal(await store.read_steps(OTHER_TENANT, "resp_1"), [])
        await store.append_events(OTHER_TENANT, "resp_1", [], [StoredStep(0, 0, b"forged")])
        check_equal(await store.read_steps(OWNER, "resp_1"), steps)

    async def test_the_end_of_a_response_deletes_its_steps(self, store: Store) -> None:
        for ends in ("ended", "deleted", "begun again"):
            stored = new_response(ends, status="queued", background=True)
            await store.begin_response(OWNER, stored)
            await store.append_events(OWNER, ends, [], [StoredStep(0, 2, b"{}")])
            begun = msgspec.structs.replace(stored.response, status="in_progress")
            await store.finish_response(OWNER, begun)
            check_equal(len(await store.read_steps(OWNER, ends)), 1)
            if ends == "ended":
                await store.finish_response(OWNER, completed(stored))
            elif ends == "deleted":
                await store.delete_response(OWNER, ends)
            else:
                await store.begin_response(OWNER, stored)
            check_equal(await store.read_steps(OWNER, ends), [])

    async def test_resuming_a_response_deletes_events_and_keeps_numbers_growing(self, tmp_path: Path) -> None:
        stored = new_response("resp_1", message("msg_1"), status="queued", background=True)
        begun = msgspec.structs.replace(stored.response, status="in_progress")
        steps = [StoredStep(0, 1, b"{}")]
        async with self.opened_store(tmp_path) as store:
            await store.begin_response(OWNER, stored)
            await store.append_events(OWNER, "resp_1", [(n, b"%d" % n) for n in range(5)], steps)
        async with self.opened_store(tmp_path) as store:
            check_equal(len(await store.claim_responses(10)), 1)
            resumed = msgspec.structs.replace(stored, response=begun, resumed=1)
            for _ in range(2):  # the second time as after a commit whose outcome was not known
                check_equal(await store.resume_response(OWNER, resumed, after=1), 5)
            check_equal(await store.read_events(OWNER, "resp_1", -1), [(0, b"0"), (1, b"1")])
            check_equal(await store.read_steps(OWNER, "resp_1"), steps)
        async with self.opened_store(tmp_path) as store:  # stopped again, before an event was stored
            [(_, again, _)] = await store.claim_responses(10)
            check_equal(again, msgspec.structs.replace(resumed, first_sequence=5))
            check_equal(await store.resume_response(OWNER, again), 5)
            await store.append_events(OWNER, "resp_1", [(5, b"5"), (6, b"6")])
            check_equal(await store.resume_response(OWNER, again), 7)
            numbers = [number for number, _ in await store.read_events(OWNER, "resp_1", -1)]
            check_equal(numbers, [0, 1, 5, 6])

    async def test_another_tenant_cannot_resume_a_response(self, store: Store) -> None:
        stored = new_response("resp_1", status="queued", background=True)
        await store.begin_response(OWNER, stored)
        await store.append_events(OWNER, "resp_1", [(0, b"zero")])
        forged = msgspec.structs.replace(stored, resumed=9)
        await check_raises(ResponseTakenOver, lambda: store.resume_response(OTHER_TENANT, forged, after=-1))
        check_equal(await store.get_response(OWNER, "resp_1"), stored)
        check_equal(await store.read_events(OWNER, "resp_1", -1), [(0, b"zero")])

    async def test_a_response_that_has_ended_or_was_deleted_is_not_resumed(self, store: Store) -> None:
        for ends in ("ended", "deleted"):
            stored = new_response(ends, status="in_progress", background=True)
            await store.begin_response(OWNER, stored)
            ended = msgspec.structs.replace(stored.response, status="cancelled")
            await store.finish_response(OWNER, ended, events=[(0, b"zero")])
            if ends == "deleted":
                await store.delete_response(OWNER, ends)
            found = await store.get_response(OWNER, ends)
            await check_raises(ResponseTakenOver, partial(store.resume_response, OWNER, stored, after=-1))
            check_equal(await store.get_response(OWNER, ends), found)
            check_equal(len(await store.read_events(OWNER, ends, -1)), ends == "ended")

    # ── After a restart ──────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_reopened_store_claims_what_is_unfinished_with_its_owner(self, tmp_path: Path) -> None:
        queued = new_response("resp_1", message("msg_1"), status="queued", background=True)
        begun = new_response("resp_2")
        async with self.opened_store(tmp_path) as store:
            await write_response(store, "ended")
            await store.begin_response(OTHER_KEY, queued)
            await store.begin_response(OTHER_TENANT, begun)
            check(await store.is_unfinished(OWNER, "resp_1"), "it is queued")
            check(not await store.is_unfinished(OWNER, "resp_2"), "it is another tenant's")
            check_equal(await store.claim_responses(10), [])
        async with self.opened_store(tmp_path) as store:
            check_equal(await store.claim_responses(1, ["resp_2"]), [(OTHER_KEY, queued, False)])
            check_equal(await store.claim_responses(10, ["resp_1", "resp_2"]), [])
            check_equal(await store.claim_responses(10), [(OTHER_TENANT, begun, False)])
            check_equal(await store.claim_responses(10), [])
            await store.begin_response(OTHER_KEY, queued)
            for owner, stored in ((OTHER_KEY, queued), (OTHER_TENANT, begun)):
                await store.finish_response(owner, completed(stored))
                check(not await store.is_unfinished(owner, stored.response.id), "it is completed")
        async with self.opened_store(tmp_path) as store:
            check_equal(await store.claim_responses(10), [])

    async def test_only_the_process_that_began_or_claimed_a_response_can_write_to_it(self, tmp_path: Path) -> None:
        stored = new_response("resp_1", background=True)
        async with self.opened_store(tmp_path) as store:
            first = store.replica_id
            await store.begin_response(OWNER, stored)
            await store.append_events(OWNER, "resp_1", [(0, b"zero")])
        async with self.opened_store(tmp_path) as store:
            check(store.replica_id != first, "each process has its own id")
            for write in (
                lambda: store.begin_response(OWNER, stored),
                lambda: store.append_events(OWNER, "resp_1", [(1, b"one")]),
                lambda: store.finish_response(OWNER, completed(stored), events=[(1, b"one")]),
            ):
                await check_raises(ResponseTakenOver, write)
            check_equal(await store.get_response(OWNER, "resp_1"), stored)
            check_equal(await store.read_events(OWNER, "resp_1", -1), [(0, b"zero")])
            await store.claim_responses(10)
            await store.append_events(OWNER, "resp_1", [(1, b"one")])
            await store.finish_response(OWNER, completed(stored))

    async def test_a_replica_id_is_a_label_of_kubernetes(self, store: Store) -> None:
        check(re.fullmatch(r"rep_[a-z0-9]{8,59}", store.replica_id) is not None, store.replica_id)

    # ── Cancelling ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_request_to_cancel_reaches_the_process_of_the_response(self, tmp_path: Path) -> None:
        stored = new_response("resp_1", background=True)
        async with self.opened_store(tmp_path) as store:
            await store.begin_response(OWNER, stored)
            await store.begin_response(OWNER, new_response("resp_2"))
            check_equal(await store.own_unfinished(), {"resp_1": False, "resp_2": False})
            check_equal(await store.request_cancel(OTHER_TENANT, "resp_1"), None)
            check_equal(await store.request_cancel(OWNER, "unknown"), None)
            for _ in range(2):
                check_equal(await store.request_cancel(OTHER_KEY, "resp_1"), store.replica_id)
                check_equal(await store.own_unfinished(), {"resp_1": True, "resp_2": False})
            await store.finish_response(OWNER, completed(new_response("resp_2")))
            check_equal(await store.request_cancel(OWNER, "resp_2"), None)
        async with self.opened_store(tmp_path) as store:
            check_equal(await store.own_unfinished(), {})
            check_equal(await store.claim_responses(10), [(OWNER, stored, True)])
            check_equal(await store.own_unfinished(), {"resp_1": True})
            await store.finish_response(OWNER, completed(stored))
            check_equal(await store.own_unfinished(), {})

    # ── Tenants ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_keys_of_one_tenant_share_responses(self, store: Store) -> None:
        await write_response(store, "1")
        check_equal(await store.get_response(OTHER_KEY, "1"), await store.get_response(OWNER, "1"))
        check(await store.delete_response(OTHER_KEY, "1"), "another key of the tenant may delete")

    async def test_another_tenant_cannot_read_or_change_a_response(self, store: Store) -> None:
        await write_response(store, "1")
        await store.append_events(OWNER, "1", [(0, b"zero")])
        await store.create_conversation(OWNER, ConversationRecord("conv_1", 1, {}), [])
        before = not_none(await store.get_response(OWNER, "1"))

        check_equal(await store.get_response(OTHER_TENANT, "1"), None)
        check_equal(await store.history(OTHER_TENANT, "1"), None)
        check_equal(await store.input_items(OTHER_TENANT, "1", PageQuery()), None)
        check_equal(await store.find_items(OTHER_TENANT, ["in_1", "out_1"]), {})
        check_equal(await store.read_events(OTHER_TENANT, "1", -1), [])
        await store.append_events(OTHER_TENANT, "1", [(1, b"one")])
        await store.finish_response(OTHER_TENANT, completed(before, message("forged")))
        check(not await store.delete_response(OTHER_TENANT, "1"), "another tenant must not delete")

        check_equal(await store.get_response(OWNER, "1"), before)
        check_equal(await store.read_events(OWNER, "1", -1), [(0, b"zero")])

    async def test_two_tenants_can_use_the_same_response_id(self, store: Store) -> None:
        await write_response(store, "1")
        own = await store.get_response(OWNER, "1")
        other = new_response("1", message("in_1", "other tenant"), conversation=Conversation("conv_1"))
        await store.create_conversation(OWNER, ConversationRecord("conv_1", 1, {}), [])
        await store.begin_response(OTHER_TENANT, other)
        await store.finish_response(OTHER_TENANT, completed(other), appended=[message("forged")])
        check_equal(await store.get_response(OWNER, "1"), own)
        check_equal(await store.all_items(OWNER, "conv_1"), [])
        check_equal(await store.find_items(OTHER_TENANT, ["in_1", "out_1"]), {"in_1": message("in_1", "other tenant")})
        check(await store.delete_response(OTHER_TENANT, "1"), "the other tenant's response exists")
        check_equal(await store.get_response(OWNER, "1"), own)

    async def test_a_history_does_not_cross_tenants(self, store: Store) -> None:
        await write_response(store, "1")
        await store.begin_response(OTHER_TENANT, new_response("2", message("in_2"), previous_response_id="1"))
        check_equal(await store.history(OTHER_TENANT, "2"), [message("in_2")])
