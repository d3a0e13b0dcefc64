"""What every `ConversationStore` must do."""

from __future__ import annotations

import asyncio
from pathlib import Path

from antwort.engine.stores import ConversationRecord, PageQuery
from antwort.testing.store.base import (
    LISTED,
    OURS,
    THEIRS,
    Conformance,
    check,
    equal,
    message,
    pages,
    refuses_cursor,
    there,
)

RECORD = ConversationRecord("conv_1", 12, {"topic": "grüße"})


class ConversationConformance(Conformance):
    """Conversations and their items."""

    async def test_a_conversation_is_there_as_it_was_made(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await store.create_conversation(OURS, RECORD, [message("msg_1"), message("msg_2")])
        async with self.store(tmp_path) as store:
            equal(await store.get_conversation(OURS, "conv_1"), RECORD)
            equal(await store.all_items(OURS, "conv_1"), [message("msg_1"), message("msg_2")])
            equal(await store.get_conversation(OURS, "unknown"), None)
            equal(await store.all_items(OURS, "unknown"), None)

    async def test_metadata_is_replaced(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await store.create_conversation(OURS, RECORD, [message("msg_1")])
            changed = ConversationRecord("conv_1", 12, {"a": "b"})
            equal(await store.update_conversation(OURS, "conv_1", {"a": "b"}), changed)
            equal(await store.get_conversation(OURS, "conv_1"), changed)
            equal(await store.all_items(OURS, "conv_1"), [message("msg_1")])
            equal(await store.update_conversation(OURS, "unknown", {}), None)

    async def test_a_deleted_conversation_is_gone_with_its_items(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await store.create_conversation(OURS, RECORD, [message("msg_1")])
            check(await store.delete_conversation(OURS, "conv_1"), "it was there")
            check(not await store.delete_conversation(OURS, "conv_1"), "it was not there any more")
            equal(await store.get_conversation(OURS, "conv_1"), None)
            equal(await store.all_items(OURS, "conv_1"), None)
            equal(await store.list_items(OURS, "conv_1", PageQuery(after="msg_1")), None)
            equal(await store.get_item(OURS, "conv_1", "msg_1"), None)
            equal(await store.find_items(OURS, ["msg_1"]), {})
            check(not await store.add_items(OURS, "conv_1", [message("msg_2")]), "there is nothing to add to")
            equal(await store.find_items(OURS, ["msg_2"]), {})

    async def test_items_are_added_at_the_end(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await store.create_conversation(OURS, RECORD, [])
            equal(await store.all_items(OURS, "conv_1"), [])
            check(await store.add_items(OURS, "conv_1", [message("msg_2"), message("msg_1")]), "it is there")
            check(await store.add_items(OURS, "conv_1", []), "it is there")
            check(await store.add_items(OURS, "conv_1", [message("msg_0")]), "it is there")
            equal(await store.all_items(OURS, "conv_1"), [message("msg_2"), message("msg_1"), message("msg_0")])

    async def test_an_item_that_is_there_already_stays_as_it_is(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await store.create_conversation(OURS, RECORD, [message("msg_1")])
            check(await store.add_items(OURS, "conv_1", [message("msg_1", "other"), message("msg_2")]), "it is there")
            equal(await store.all_items(OURS, "conv_1"), [message("msg_1"), message("msg_2")])

    async def test_many_add_at_once_and_no_group_is_torn(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await store.create_conversation(OURS, RECORD, [])
            groups = [[message(f"{group}_{n}") for n in range(3)] for group in range(30)]
            await asyncio.gather(*(store.add_items(OURS, "conv_1", group) for group in groups))
            items = there(await store.all_items(OURS, "conv_1"))
            found = [items[start : start + 3] for start in range(0, len(items), 3)]
            equal(sorted(found, key=str), sorted(groups, key=str))

    async def test_items_come_in_pages(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await store.create_conversation(OURS, RECORD, [message(name) for name in LISTED])
            await store.create_conversation(OURS, ConversationRecord("conv_2", 1, {}), [message("elsewhere")])
            await pages(lambda query: store.list_items(OURS, "conv_1", query), lambda item: item["id"])
            await refuses_cursor(lambda query: store.list_items(OURS, "conv_1", query), PageQuery(after="elsewhere"))
            equal(await store.list_items(OURS, "unknown", PageQuery()), None)

    async def test_one_item(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await store.create_conversation(OURS, RECORD, [message("msg_1"), message("msg_2")])
            await store.create_conversation(OURS, ConversationRecord("conv_2", 1, {}), [message("msg_3")])
            equal(await store.get_item(OURS, "conv_1", "msg_2"), message("msg_2"))
            for conversation, item in (("conv_1", "msg_3"), ("conv_1", "unknown"), ("unknown", "msg_1")):
                equal(await store.get_item(OURS, conversation, item), None)
                check(not await store.delete_item(OURS, conversation, item), "it is not there")
            check(await store.delete_item(OURS, "conv_1", "msg_1"), "it was there")
            check(not await store.delete_item(OURS, "conv_1", "msg_1"), "it was not there any more")
            equal(await store.all_items(OURS, "conv_1"), [message("msg_2")])
            equal(await store.find_items(OURS, ["msg_1"]), {})

    async def test_another_tenant_sees_and_changes_no_conversation(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await store.create_conversation(OURS, RECORD, [message("msg_1")])

            equal(await store.get_conversation(THEIRS, "conv_1"), None)
            equal(await store.update_conversation(THEIRS, "conv_1", {}), None)
            equal(await store.list_items(THEIRS, "conv_1", PageQuery()), None)
            equal(await store.all_items(THEIRS, "conv_1"), None)
            equal(await store.get_item(THEIRS, "conv_1", "msg_1"), None)
            equal(await store.find_items(THEIRS, ["msg_1"]), {})
            check(not await store.add_items(THEIRS, "conv_1", [message("forged")]), "it is not theirs to add to")
            check(not await store.delete_item(THEIRS, "conv_1", "msg_1"), "it is not theirs to delete")
            check(not await store.delete_conversation(THEIRS, "conv_1"), "it is not theirs to delete")

            equal(await store.get_conversation(OURS, "conv_1"), RECORD)
            equal(await store.all_items(OURS, "conv_1"), [message("msg_1")])

    async def test_two_tenants_may_have_conversations_with_the_same_id(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await store.create_conversation(OURS, RECORD, [message("msg_1")])
            await store.create_conversation(THEIRS, RECORD, [message("msg_1", "theirs")])
            check(await store.delete_conversation(THEIRS, "conv_1"), "theirs is there")
            equal(await store.all_items(OURS, "conv_1"), [message("msg_1")])

    async def test_a_trial_changes_nothing(self, tmp_path: Path) -> None:
        async with self.store(tmp_path) as store:
            await store.create_conversation(OURS, RECORD, [message("msg_1")])
            await store.check_writable()
            equal(await store.all_items(OURS, "conv_1"), [message("msg_1")])
        async with self.store(tmp_path) as store:
            equal(await store.get_conversation(OURS, "conv_1"), RECORD)
