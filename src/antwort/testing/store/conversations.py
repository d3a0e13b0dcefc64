"""Conformance tests for `ConversationStore`."""

from __future__ import annotations

import asyncio
from pathlib import Path

from antwort.engine.stores import ConversationRecord, PageQuery, Store
from antwort.testing.checks import check, check_equal, not_none
from antwort.testing.store.base import OTHER_TENANT, OWNER, Conformance, message
from antwort.testing.store.paging import LISTED_IDS, check_pages, check_unknown_cursor

RECORD = ConversationRecord("conv_1", 12, {"topic": "grüße"})


class ConversationConformance(Conformance):
    """Tests of conversations and their items."""

    async def test_a_created_conversation_can_be_read_after_reopening(self, tmp_path: Path) -> None:
        async with self.opened_store(tmp_path) as store:
            await store.create_conversation(OWNER, RECORD, [message("msg_1"), message("msg_2")])
        async with self.opened_store(tmp_path) as store:
            check_equal(await store.get_conversation(OWNER, "conv_1"), RECORD)
            check_equal(await store.all_items(OWNER, "conv_1"), [message("msg_1"), message("msg_2")])
            check_equal(await store.get_conversation(OWNER, "unknown"), None)
            check_equal(await store.all_items(OWNER, "unknown"), None)

    async def test_metadata_is_replaced(self, store: Store) -> None:
        await store.create_conversation(OWNER, RECORD, [message("msg_1")])
        changed = ConversationRecord("conv_1", 12, {"a": "b"})
        check_equal(await store.update_conversation(OWNER, "conv_1", {"a": "b"}), changed)
        check_equal(await store.get_conversation(OWNER, "conv_1"), changed)
        check_equal(await store.all_items(OWNER, "conv_1"), [message("msg_1")])
        check_equal(await store.update_conversation(OWNER, "unknown", {}), None)

    async def test_deleting_a_conversation_deletes_its_items(self, store: Store) -> None:
        await store.create_conversation(OWNER, RECORD, [message("msg_1")])
        check(await store.delete_conversation(OWNER, "conv_1"), "the object existed")
        check(not await store.delete_conversation(OWNER, "conv_1"), "the object was already deleted")
        check_equal(await store.get_conversation(OWNER, "conv_1"), None)
        check_equal(await store.all_items(OWNER, "conv_1"), None)
        check_equal(await store.list_items(OWNER, "conv_1", PageQuery(after="msg_1")), None)
        check_equal(await store.get_item(OWNER, "conv_1", "msg_1"), None)
        check_equal(await store.find_items(OWNER, ["msg_1"]), {})
        check(not await store.add_items(OWNER, "conv_1", [message("msg_2")]), "the conversation is deleted")
        check_equal(await store.find_items(OWNER, ["msg_2"]), {})

    async def test_items_are_appended(self, store: Store) -> None:
        await store.create_conversation(OWNER, RECORD, [])
        check_equal(await store.all_items(OWNER, "conv_1"), [])
        check(await store.add_items(OWNER, "conv_1", [message("msg_2"), message("msg_1")]), "the conversation exists")
        check(await store.add_items(OWNER, "conv_1", []), "the conversation exists")
        check(await store.add_items(OWNER, "conv_1", [message("msg_0")]), "the conversation exists")
        check_equal(await store.all_items(OWNER, "conv_1"), [message("msg_2"), message("msg_1"), message("msg_0")])

    async def test_an_existing_item_is_not_replaced(self, store: Store) -> None:
        await store.create_conversation(OWNER, RECORD, [message("msg_1")])
        added = [message("msg_1", "other"), message("msg_2")]
        check(await store.add_items(OWNER, "conv_1", added), "the conversation exists")
        check_equal(await store.all_items(OWNER, "conv_1"), [message("msg_1"), message("msg_2")])

    async def test_concurrent_appends_keep_their_groups_together(self, store: Store) -> None:
        await store.create_conversation(OWNER, RECORD, [])
        groups = [[message(f"{group}_{n}") for n in range(3)] for group in range(30)]
        await asyncio.gather(*(store.add_items(OWNER, "conv_1", group) for group in groups))
        items = not_none(await store.all_items(OWNER, "conv_1"))
        found = [items[start : start + 3] for start in range(0, len(items), 3)]
        check_equal(sorted(found, key=str), sorted(groups, key=str))

    async def test_items_are_paged(self, store: Store) -> None:
        await store.create_conversation(OWNER, RECORD, [message(name) for name in LISTED_IDS])
        await store.create_conversation(OWNER, ConversationRecord("conv_2", 1, {}), [message("other")])
        await check_pages(lambda query: store.list_items(OWNER, "conv_1", query), lambda item: item["id"])
        await check_unknown_cursor(lambda query: store.list_items(OWNER, "conv_1", query), PageQuery(after="other"))
        check_equal(await store.list_items(OWNER, "unknown", PageQuery()), None)

    async def test_get_and_delete_an_item(self, store: Store) -> None:
        await store.create_conversation(OWNER, RECORD, [message("msg_1"), message("msg_2")])
        await store.create_conversation(OWNER, ConversationRecord("conv_2", 1, {}), [message("msg_3")])
        check_equal(await store.get_item(OWNER, "conv_1", "msg_2"), message("msg_2"))
        for conversation, item in (("conv_1", "msg_3"), ("conv_1", "unknown"), ("unknown", "msg_1")):
            check_equal(await store.get_item(OWNER, conversation, item), None)
            check(not await store.delete_item(OWNER, conversation, item), "the item does not exist")
        check(await store.delete_item(OWNER, "conv_1", "msg_1"), "the object existed")
        check(not await store.delete_item(OWNER, "conv_1", "msg_1"), "the object was already deleted")
        check_equal(await store.all_items(OWNER, "conv_1"), [message("msg_2")])
        check_equal(await store.find_items(OWNER, ["msg_1"]), {})

    async def test_another_tenant_cannot_read_or_change_a_conversation(self, store: Store) -> None:
        await store.create_conversation(OWNER, RECORD, [message("msg_1")])

        check_equal(await store.get_conversation(OTHER_TENANT, "conv_1"), None)
        check_equal(await store.update_conversation(OTHER_TENANT, "conv_1", {}), None)
        check_equal(await store.list_items(OTHER_TENANT, "conv_1", PageQuery()), None)
        check_equal(await store.all_items(OTHER_TENANT, "conv_1"), None)
        check_equal(await store.get_item(OTHER_TENANT, "conv_1", "msg_1"), None)
        check_equal(await store.find_items(OTHER_TENANT, ["msg_1"]), {})
        check(not await store.add_items(OTHER_TENANT, "conv_1", [message("forged")]), "another tenant must not add")
        check(not await store.delete_item(OTHER_TENANT, "conv_1", "msg_1"), "another tenant must not delete")
        check(not await store.delete_conversation(OTHER_TENANT, "conv_1"), "another tenant must not delete")

        check_equal(await store.get_conversation(OWNER, "conv_1"), RECORD)
        check_equal(await store.all_items(OWNER, "conv_1"), [message("msg_1")])

    async def test_two_tenants_can_use_the_same_conversation_id(self, store: Store) -> None:
        await store.create_conversation(OWNER, RECORD, [message("msg_1")])
        await store.create_conversation(OTHER_TENANT, RECORD, [message("msg_1", "other tenant")])
        check(await store.delete_conversation(OTHER_TENANT, "conv_1"), "the other tenant's conversation exists")
        check_equal(await store.all_items(OWNER, "conv_1"), [message("msg_1")])

    async def test_the_write_check_changes_nothing(self, tmp_path: Path) -> None:
        async with self.opened_store(tmp_path) as store:
            await store.create_conversation(OWNER, RECORD, [message("msg_1")])
            await store.check_writable()
            check_equal(await store.all_items(OWNER, "conv_1"), [message("msg_1")])
        async with self.opened_store(tmp_path) as store:
            check_equal(await store.get_conversation(OWNER, "conv_1"), RECORD)
