"""Encrypted items through a server process: refusals, tenants, reasoning, key rotation, and what is written to disk."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from fixtures_compaction_server import (
    MANAGED,
    SCRIPT,
    TRIGGER,
    Api,
    assistant,
    compaction_of,
    compaction_server,
    history,
    text_of,
    user,
)
from fixtures_server import ROOT, Server, run_server
from waiting import wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with compaction_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def api(server):
    api = Api(server, server.keys["us"])
    with api.http:
        yield api


@pytest.fixture
def other_tenant(server):
    api = Api(server, server.keys["them"])
    with api.http:
        yield api


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────────────────────────

UNDECRYPTABLE = "Encrypted content could not be decrypted or parsed."
WRONG_ITEM = "Encrypted content item_id did not match the target item id."


@pytest.fixture(scope="module")
def item(server):
    api = Api(server, server.keys["us"])
    with api.http:
        return compaction_of(api.create(input=[*history(), TRIGGER], store=False))


def all_refusals(api: Api, *given: dict[str, Any]) -> list[dict[str, Any]]:
    """The errors of all requests that open items."""
    return [
        api.refused(input=[*given, user("Hello")]),
        api.refused(input=[*given, user("Hello")], store=False, stream=True),
        api.refused(input=[*given, TRIGGER]),
        api.refused("responses/compact", model="scripted", input=list(given)),
        api.refused("responses/input_tokens", input=list(given)),
    ]


@pytest.mark.parametrize("change", ["foreign", "forged", "truncated", "flipped", "empty"])
def test_a_changed_item_is_refused(api, item, change):
    token = item["encrypted_content"]
    middle = len(token) // 2
    flipped = token[:middle] + ("A" if token[middle] != "A" else "B") + token[middle + 1 :]
    tokens = {
        "foreign": "gAAAAABoZm9yZWlnbg==",
        "forged": "antwort1." + "A" * 200,
        "truncated": token[:-20],
        "flipped": flipped,
        "empty": "",
    }
    for error in all_refusals(api, {**item, "encrypted_content": tokens[change]}):
        assert (error["code"], error["type"]) == ("invalid_encrypted_content", "invalid_request_error")
        expected = f"The encrypted content for item {item['id']} could not be verified. Reason: {UNDECRYPTABLE}"
        assert error["message"] == expected


def test_an_item_with_the_id_of_another_is_refused(api, item):
    other = compaction_of(api.create(input=[*history(), TRIGGER], store=False))
    for error in all_refusals(api, {**item, "id": other["id"]}):
        assert error["code"] == "invalid_encrypted_content"
        assert error["message"].endswith(WRONG_ITEM)


def test_an_item_of_another_tenant_is_refused(other_tenant, item):
    for error in all_refusals(other_tenant, item):
        assert error["code"] == "invalid_encrypted_content"
        assert error["message"].endswith(UNDECRYPTABLE)


def test_another_key_of_the_tenant_opens_the_item(server, item):
    api = Api(server, server.keys["second_key"])
    with api.http:
        assert text_of(api.create(input=[item, user("recall")], store=False)).split() == ["FACT-1", "FACT-2"]


def test_tokens_of_reasoning_and_compaction_are_not_interchangeable(api, item):
    thought = api.create(input="think", include=["reasoning.encrypted_content"])["output"][0]
    swapped = [
        {"type": "compaction", "encrypted_content": thought["encrypted_content"]},
        {**thought, "encrypted_content": item["encrypted_content"], "id": None},
    ]
    for wrong in swapped:
        for error in all_refusals(api, wrong):
            assert error["code"] == "invalid_encrypted_content"


def test_malformed_requests_have_a_clear_error(api):
    missing = api.refused(input=[{"type": "compaction", "id": "cmp_1"}])
    early = api.refused(input=[user("a"), TRIGGER, user("b")])
    low = api.refused(input="x", context_management=[{"type": "compaction", "compact_threshold": 999}])

    assert "encrypted_content" in missing["message"]
    assert "compaction_trigger" in early["message"]
    assert early["param"] == "input[1]"
    assert low["param"] == "context_management[0].compact_threshold"


def test_a_refused_item_is_not_stored_in_a_conversation_that_is_used_later(api):
    conversation = api.post("conversations")["id"]
    forged = {"type": "compaction", "id": "cmp_1", "encrypted_content": "antwort1.forged"}
    api.refused(input=[forged, user("x")], conversation=conversation)

    assert api.get(f"conversations/{conversation}/items")["data"] == []


def test_a_conversation_takes_no_items_that_its_responses_could_not_use(api, other_tenant, item):
    broken = {**item, "encrypted_content": item["encrypted_content"][:-8]}
    conversation = api.post("conversations")["id"]

    for path in ("conversations", f"conversations/{conversation}/items"):
        assert api.refused(path, items=[broken])["code"] == "invalid_encrypted_content"
        assert api.refused(path, items=[user("Hello"), TRIGGER])["param"] == "items[1]"
    assert other_tenant.refused("conversations", items=[item])["code"] == "invalid_encrypted_content"
    api.post(f"conversations/{conversation}/items", items=[item])
    assert "FACT-2" in text_of(api.create(input="recall", conversation=conversation))


# ── encrypted reasoning ──────────────────────────────────────────────────────────────────────────────────────────────


def test_encrypted_reasoning_is_sent_back_without_content_and_id(api):
    include = ["reasoning.encrypted_content"]
    response = api.create(input="think", include=include, store=False)
    thought, answer = response["output"]
    streamed = api.stream(input="think", include=include, store=False)[-1]["response"]["output"][0]

    assert thought["encrypted_content"].startswith("antwort1.")
    assert thought["content"] == [{"type": "reasoning_text", "text": "FACT-77, hidden."}]
    assert "encrypted_content" not in api.create(input="think")["output"][0]
    for sealed in (thought, streamed):
        bare = {"type": "reasoning", "summary": [], "encrypted_content": sealed["encrypted_content"]}
        for sent in (sealed, {**bare, "id": sealed["id"]}, bare):
            following = api.create(input=[user("think"), sent, answer, user("recall")], store=False)
            assert text_of(following) == "FACT-77"
    forged = {**thought, "encrypted_content": thought["encrypted_content"][:-6] + "AAAAAA"}
    for error in all_refusals(api, forged):
        assert error["code"] == "invalid_encrypted_content"
        assert thought["id"] in error["message"]


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def rotate(server: Server, *options: str) -> None:
    command = [sys.executable, "-m", "antwort", "keys", "rotate-compaction", "--config", "antwort.yaml", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run(command, cwd=server.directory, env=environment, check=True, capture_output=True)


def key_id(item: dict[str, Any]) -> str:
    return item["encrypted_content"][9:14]


def test_rotated_keys_open_old_items_until_they_are_dropped(tmp_path):
    with run_server(tmp_path, script=SCRIPT) as server:
        api = Api(server)
        with api.http:
            old = compaction_of(api.create(input=[*history(), TRIGGER]))
            stored = api.create(input=[*history(), TRIGGER])["id"]
            rotate(server)
            new = wait_until(lambda: _sealed_with_another_key(api, old))
            for item in (old, new):
                assert text_of(api.create(input=[item, user("recall")])).split() == ["FACT-1", "FACT-2"]
            rotate(server, "--keep", "1")
            wait_until(lambda: api.http.post("/v1/responses", json={"input": [old, user("x")]}).status_code == 400)
            errors = [api.refused(input=[old, user("recall")]), api.refused(input="x", previous_response_id=stored)]
            assert {error["code"] for error in errors} == {"invalid_encrypted_content"}
            server.stop()
            server.start()
            api.http = server.http()
            fresh = compaction_of(api.create(input=[*history(), TRIGGER]))
            assert api.refused(input=[new, user("recall")])["code"] == "invalid_encrypted_content"
            assert text_of(api.create(input=[fresh, user("recall")])).split() == ["FACT-1", "FACT-2"]
            api.http.close()


def _sealed_with_another_key(api: Api, old: dict[str, Any]) -> dict[str, Any] | None:
    new = compaction_of(api.create(input=[*history(), TRIGGER]))
    return new if key_id(new) != key_id(old) else None


# ── privacy ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_of_a_request_that_is_not_stored_is_written(tmp_path):
    marker = "planted-marker-of-privacy"
    with run_server(tmp_path, script=SCRIPT) as server:
        api = Api(server)
        with api.http:
            given = [user(f"{marker} FACT-1"), assistant(marker), *history("BROKEN-SUMMARY")]
            window = api.compact(input=given, instructions=marker)["output"]
            item = compaction_of(api.create(input=[*given, TRIGGER], store=False))
            managed = {"context_management": MANAGED, "store": False}
            api.create(input=[*given, user(f"think {marker}")], include=["reasoning.encrypted_content"], **managed)
            api.stream(input=[*given, user("recall")], **managed)
            api.create(input=[*window, user("recall")], store=False)
            api.create(input=[item, user(marker)], store=False)
            api.post("responses/input_tokens", input=[item, user(marker)])
            api.refused(input=[{**item, "id": "cmp_1"}, user(marker)], store=False)
        server.stop()
        written = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "script.yaml"]
        assert any(path.name == "antwort.db" for path in written)
        assert [path.name for path in written if marker.encode() in path.read_bytes()] == []
