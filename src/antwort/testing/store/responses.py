"""What every `ResponseStore` must do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from antwort.api.responses import Conversation, Response, Usage
from antwort.engine.stores import (
    MAX_EVENT_READ_BYTES,
    ConversationRecord,
    PageQuery,
    Store,
    StoredResponse,
)
from antwort.testing.store.base import (
    LISTED,
    OURS,
    OURS_BY_ANOTHER_KEY,
    THEIRS,
    Conformance,
    check,
    equal,
    message,
    pages,
    refuses_cursor,
    there,
)

DEEP = 1000


def asked(identifier: str, *items: dict[str, Any], **fields: object) -> StoredResponse:
    """A response that has just begun."""
    response = msgspec.structs.replace(Response(id=identifier, created_at=1, model="m"), **fields)
    return StoredResponse(response=response, input=list(items), request={"model": "m", "x": [1, {"y": None}]})


def done(stored: StoredResponse, *output: dict[str, Any], **fields: object) -> Response:
    """The same response, completed."""
    return msgspec.structs.replace(stored.response, status="completed", output=list(output), **fields)


async def turn(store: Store, identifier: str, previous: str | None = None) -> None:
    """A response with one item in and one out, behind another."""
    stored = asked(identifier, message(f"in_{identifier}"), previous_response_id=previous)
    await store.begin_response(OURS, stored)
    await store.finish_response(OURS, done(stored, message(f"out_{identifier}")))


async def chain_of(store: Store, identifier: str) -> list[str]:
    """The ids of the history's items."""
    return [item["id"] for item in there(await store.history(OURS, identifier))]


class ResponseConformance(Conformance):
    """Responses, their items and events."""

    # ── Writing and reading ──────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_response_is_there_as_soon_as_it_has_begun(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            stored = asked("resp_1", message("msg_1"), metadata={"a": "b"}, instructions="grüße 🎈 \0")
            await store.begin_response(OURS, stored)
            equal(await store.get_response(OURS, "resp_1"), stored)

    async def test_a_response_is_there_as_it_ended(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            stored = asked("resp_1", message("msg_1"))
            await store.begin_response(OURS, stored)
            for output in ([message("msg_2")], [message("msg_2", "changed"), {"type": "unknown", "n": 2**70}], []):
                ended = done(stored, *output, usage=Usage(1, total_tokens=1))
                await store.finish_response(OURS, ended)
                found = there(await store.get_response(OURS, "resp_1"))
                equal(found, StoredResponse(response=ended, input=stored.input, request=stored.request))

    async def test_what_was_written_outlives_the_store(self, tmp_path: Path) -> None:
        stored = asked("resp_1", message("msg_1"))
        ended = done(stored, message("msg_2"))
        async with self.store(tmp_path) as store:
            await store.begin_response(OURS, stored)
            await store.finish_response(OURS, ended)
            await store.append_events(OURS, "resp_1", [(0, b"zero")])
        async with self.store(tmp_path) as store:
            equal(there(await store.get_response(OURS, "resp_1")).response, ended)
            equal(await store.read_events(OURS, "resp_1", -1), [(0, b"zero")])

    async def test_what_changes_after_it_was_handed_over_is_not_written(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            stored = asked("resp_1", message("msg_1"))
            writing = asyncio.ensure_future(store.begin_response(OURS, stored))
            await asyncio.sleep(0)
            stored.response.model = "changed"
            stored.input[0]["role"] = "changed"
            await writing
            found = there(await store.get_response(OURS, "resp_1"))
            equal((found.response.model, found.input[0]["role"]), ("m", "user"))

    async def test_begun_again_it_starts_anew(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            first, second = asked("resp_1", message("msg_1")), asked("resp_1", message("msg_2"))
            await store.begin_response(OURS, first)
            await store.finish_response(OURS, done(first, message("msg_3")))
            await store.append_events(OURS, "resp_1", [(0, b"zero")])
            await store.begin_response(OURS, second)
            equal(await store.get_response(OURS, "resp_1"), second)
            equal(await store.read_events(OURS, "resp_1", -1), [])
            equal([*await store.find_items(OURS, ["msg_1", "msg_2", "msg_3"])], ["msg_2"])

    async def test_many_at_once(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            names = [f"resp_{number}" for number in range(100)]
            await asyncio.gather(*(turn(store, name) for name in names))
            found = await asyncio.gather(*(chain_of(store, name) for name in names))
            equal(found, [[f"in_{name}", f"out_{name}"] for name in names])

    # ── Deleting ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_deleted_response_is_gone_with_all_it_had(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await turn(store, "1")
            await store.append_events(OURS, "1", [(0, b"zero")])
            check(await store.delete_response(OURS, "1"), "it was there")
            check(not await store.delete_response(OURS, "1"), "it was not there any more")
            equal(await store.get_response(OURS, "1"), None)
            equal(await store.history(OURS, "1"), None)
            equal(await store.input_items(OURS, "1", PageQuery()), None)
            equal(await store.find_items(OURS, ["in_1", "out_1"]), {})
            equal(await store.read_events(OURS, "1", -1), [])

    async def test_a_deleted_response_stays_deleted(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            stored = asked("resp_1")
            await store.begin_response(OURS, stored)
            await store.delete_response(OURS, "resp_1")
            await store.finish_response(OURS, done(stored, message("msg_1")))
            await store.append_events(OURS, "resp_1", [(0, b"zero")])
            equal(await store.get_response(OURS, "resp_1"), None)
            equal(await store.find_items(OURS, ["msg_1"]), {})
            equal(await store.read_events(OURS, "resp_1", -1), [])

    # ── Chains ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_the_history_is_the_whole_chain_oldest_first(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            for name, previous in (("1", None), ("2", "1"), ("other", "1"), ("3", "2")):
                await turn(store, name, previous)
            equal(await chain_of(store, "3"), ["in_1", "out_1", "in_2", "out_2", "in_3", "out_3"])
            equal(await chain_of(store, "other"), ["in_1", "out_1", "in_other", "out_other"])
            equal(await chain_of(store, "1"), ["in_1", "out_1"])
            equal(await store.history(OURS, "unknown"), None)

    async def test_a_chain_without_items_is_empty_and_not_missing(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await store.begin_response(OURS, asked("resp_1"))
            equal(await store.history(OURS, "resp_1"), [])

    async def test_a_chain_begins_behind_a_deleted_response(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            for name, previous in (("1", None), ("2", "1"), ("3", "2")):
                await turn(store, name, previous)
            await store.delete_response(OURS, "2")
            equal(await chain_of(store, "3"), ["in_3", "out_3"])

    async def test_a_deep_chain(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            begun = [asked(f"{n}", message(f"in_{n}"), previous_response_id=f"{n - 1}") for n in range(DEEP)]
            await asyncio.gather(*(store.begin_response(OURS, stored) for stored in begun))
            equal(await chain_of(store, f"{DEEP - 1}"), [f"in_{n}" for n in range(DEEP)])

    async def test_a_response_that_follows_itself_has_an_end(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await turn(store, "1", "1")
            equal(await chain_of(store, "1"), ["in_1", "out_1"])

    # ── Items ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_input_items_come_in_pages(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            stored = asked("resp_1", *map(message, LISTED))
            await store.begin_response(OURS, stored)
            await store.finish_response(OURS, done(stored, message("out_1")))
            await store.begin_response(OURS, asked("resp_2", message("elsewhere")))
            await pages(lambda query: store.input_items(OURS, "resp_1", query), lambda item: item["id"])
            equal(there(await store.input_items(OURS, "resp_1", PageQuery(limit=1))).data, [message(LISTED[-1])])
            await refuses_cursor(lambda query: store.input_items(OURS, "resp_1", query), PageQuery(after="elsewhere"))
            await refuses_cursor(lambda query: store.input_items(OURS, "resp_1", query), PageQuery(after="out_1"))
            equal(await store.input_items(OURS, "unknown", PageQuery(after="unknown")), None)

    async def test_items_are_found_wherever_they_are(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await turn(store, "1")
            await store.create_conversation(OURS, ConversationRecord("conv_1", 1, {}), [message("msg_1")])
            found = await store.find_items(OURS, ["msg_1", "out_1", "unknown", "in_1", "msg_1"])
            equal(found, {name: message(name) for name in ("msg_1", "out_1", "in_1")})
            equal(await store.find_items(OURS, []), {})

    async def test_the_newest_of_several_with_one_id_is_found(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await store.begin_response(OURS, asked("resp_1", message("msg_1", "old")))
            await store.begin_response(OURS, asked("resp_2", message("msg_1", "new")))
            equal(await store.find_items(OURS, ["msg_1"]), {"msg_1": message("msg_1", "new")})
            await store.delete_response(OURS, "resp_2")
            equal(await store.find_items(OURS, ["msg_1"]), {"msg_1": message("msg_1", "old")})

    async def test_a_reference_is_no_item(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await store.begin_response(OURS, asked("resp_1", message("msg_1")))
            references = [{"type": "item_reference", "id": "msg_1"}, {"id": "msg_1"}]
            await store.begin_response(OURS, asked("resp_2", *references))
            equal(await store.find_items(OURS, ["msg_1"]), {"msg_1": message("msg_1")})

    # ── Conversations ────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_response_ends_together_with_what_its_conversation_gains(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await store.create_conversation(OURS, ConversationRecord("conv_1", 1, {}), [message("msg_0")])
            stored = asked("resp_1", message("msg_1"), conversation=Conversation("conv_1"))
            ended = done(stored, message("msg_2"))
            await store.begin_response(OURS, stored)
            for _ in range(2):  # the second time nothing is new
                await store.finish_response(OURS, ended, appended=[*stored.input, *ended.output])
                equal(await store.all_items(OURS, "conv_1"), [message(f"msg_{n}") for n in range(3)])

    async def test_a_response_ends_also_without_its_conversation(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            stored = asked("resp_1", conversation=Conversation("conv_gone"))
            await store.begin_response(OURS, stored)
            await store.finish_response(OURS, done(stored), appended=[message("msg_1")])
            equal(there(await store.get_response(OURS, "resp_1")).response.status, "completed")
            equal(await store.find_items(OURS, ["msg_1"]), {})

    # ── Events ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_events_are_read_from_where_the_reader_was(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await store.begin_response(OURS, asked("resp_1"))
            await store.append_events(OURS, "resp_1", [(0, b"zero"), (1, b"one\n\n")])
            await store.append_events(OURS, "resp_1", [(2, b"\0\xff")])
            await store.append_events(OURS, "resp_1", [])
            every = [(0, b"zero"), (1, b"one\n\n"), (2, b"\0\xff")]
            for after in range(-1, 4):
                equal(await store.read_events(OURS, "resp_1", after), every[after + 1 :])
            equal(await store.read_events(OURS, "unknown", -1), [])

    async def test_events_are_read_so_many_bytes_at_a_time(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await store.begin_response(OURS, asked("resp_1"))
            every = [(number, b"x" * (MAX_EVENT_READ_BYTES * 2 // 5)) for number in range(6)]
            every += [(6, b"y" * MAX_EVENT_READ_BYTES * 2), (7, b"z")]
            await store.append_events(OURS, "resp_1", every)
            read: list[tuple[int, bytes]] = []
            sizes: list[int] = []
            while some := await store.read_events(OURS, "resp_1", read[-1][0] if read else -1):
                read += some
                sizes.append(len(some))
            equal(read, every)
            equal(sizes, [3, 3, 1, 1])

    async def test_a_response_ends_together_with_its_last_events(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            stored = asked("resp_1")
            await store.begin_response(OURS, stored)
            await store.append_events(OURS, "resp_1", [(0, b"zero"), (1, b"one")])
            for _ in range(2):  # the second time nothing is new
                await store.finish_response(OURS, done(stored), events=[(1, b"one"), (2, b"two")])
                equal(await store.read_events(OURS, "resp_1", -1), [(0, b"zero"), (1, b"one"), (2, b"two")])
            await store.finish_response(OURS, done(asked("resp_0")), events=[(0, b"of nothing")])
            equal(await store.read_events(OURS, "resp_0", -1), [])

    # ── After a restart ──────────────────────────────────────────────────────────────────────────────────────────────

    async def test_what_has_not_ended_is_found_with_its_owner(self, tmp_path: Path) -> None:
        queued, begun = asked("resp_1", message("msg_1"), status="queued", background=True), asked("resp_2")
        async with self.store(tmp_path) as store:
            await turn(store, "ended")
            await store.begin_response(OURS_BY_ANOTHER_KEY, queued)
            await store.begin_response(THEIRS, begun)
        async with self.store(tmp_path) as store:
            equal(await store.unfinished_responses(), [(OURS_BY_ANOTHER_KEY, queued), (THEIRS, begun)])
            for owner, stored in await store.unfinished_responses():
                await store.finish_response(owner, done(stored))
            equal(await store.unfinished_responses(), [])

    # ── Tenants ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_another_key_of_the_tenant_sees_the_same(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await turn(store, "1")
            equal(await store.get_response(OURS_BY_ANOTHER_KEY, "1"), await store.get_response(OURS, "1"))
            check(await store.delete_response(OURS_BY_ANOTHER_KEY, "1"), "it is theirs too")

    async def test_another_tenant_sees_and_changes_nothing(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await turn(store, "1")
            await store.append_events(OURS, "1", [(0, b"zero")])
            await store.create_conversation(OURS, ConversationRecord("conv_1", 1, {}), [])
            before = there(await store.get_response(OURS, "1"))

            equal(await store.get_response(THEIRS, "1"), None)
            equal(await store.history(THEIRS, "1"), None)
            equal(await store.input_items(THEIRS, "1", PageQuery()), None)
            equal(await store.find_items(THEIRS, ["in_1", "out_1"]), {})
            equal(await store.read_events(THEIRS, "1", -1), [])
            await store.append_events(THEIRS, "1", [(1, b"one")])
            await store.finish_response(THEIRS, done(before, message("forged")))
            check(not await store.delete_response(THEIRS, "1"), "it is not theirs to delete")

            equal(await store.get_response(OURS, "1"), before)
            equal(await store.read_events(OURS, "1", -1), [(0, b"zero")])

    async def test_two_tenants_may_have_the_same_ids(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await turn(store, "1")
            ours = await store.get_response(OURS, "1")
            theirs = asked("1", message("in_1", "theirs"), conversation=Conversation("conv_1"))
            await store.create_conversation(OURS, ConversationRecord("conv_1", 1, {}), [])
            await store.begin_response(THEIRS, theirs)
            await store.finish_response(THEIRS, done(theirs), appended=[message("forged")])
            equal(await store.get_response(OURS, "1"), ours)
            equal(await store.all_items(OURS, "conv_1"), [])
            equal(await store.find_items(THEIRS, ["in_1", "out_1"]), {"in_1": message("in_1", "theirs")})
            check(await store.delete_response(THEIRS, "1"), "theirs is there")
            equal(await store.get_response(OURS, "1"), ours)

    async def test_a_chain_does_not_lead_to_another_tenant(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await turn(store, "1")
            await store.begin_response(THEIRS, asked("2", message("in_2"), previous_response_id="1"))
            equal(await store.history(THEIRS, "2"), [message("in_2")])
