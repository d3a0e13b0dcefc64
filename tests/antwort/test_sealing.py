from __future__ import annotations

import base64
import json
import os
import stat
import subprocess
import sys
import threading
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.sealing import MAX_CONTENT, InvalidSeal, Sealer, SealingKeys, SealingKeysError, Unsealed

PREFIX = "antwort1."
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "compaction-keys.json"


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return SealingKeys.open_or_create(tmp_path_factory.mktemp("sealing") / "keys.json")


@pytest.fixture(scope="module")
def sealer(keys):
    return Sealer(keys)


def refusal(sealer: Sealer, tenant: str, item_id: str | None, token: str) -> str:
    with pytest.raises(InvalidSeal) as caught:
        sealer.open(tenant, item_id, token)
    return caught.value.reason


def raw(token: str) -> bytearray:
    body = token.removeprefix(PREFIX)
    return bytearray(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))


def as_token(data: bytes | bytearray) -> str:
    return PREFIX + base64.urlsafe_b64encode(data).rstrip(b"=").decode()


# ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(tenant=st.text(max_size=20), item_id=st.text(max_size=80), content=st.binary(max_size=500))
def test_what_was_sealed_opens_for_its_tenant_and_item(sealer, tenant, item_id, content):
    token = sealer.seal(tenant, item_id, content)

    assert sealer.open(tenant, item_id, token) == Unsealed(item_id, content)
    assert sealer.open(tenant, None, token) == Unsealed(item_id, content)
    assert sealer.is_own(token)
    assert set(token.removeprefix(PREFIX)) <= set(ALPHABET)


def test_a_token_shows_neither_content_nor_item_id_and_never_repeats(sealer):
    content = bytes(range(256))
    tokens = {sealer.seal("acme", "cmp_1", content) for _ in range(50)}

    assert len(tokens) == 50
    assert not any(part in raw(token) for token in tokens for part in (content[:16], b"cmp_1", b"acme"))


def test_another_tenant_cannot_open_a_token(sealer):
    token = sealer.seal("acme", "cmp_1", b"plan")

    for tenant in ("other", "acm", "acme ", "", "ACME"):
        assert refusal(sealer, tenant, "cmp_1", token) == "undecryptable"
        assert refusal(sealer, tenant, None, token) == "undecryptable"


def test_tokens_of_two_items_cannot_be_swapped(sealer):
    first, second = (sealer.seal("acme", item, item.encode()) for item in ("cmp_1", "cmp_2"))

    assert refusal(sealer, "acme", "cmp_1", second) == "wrong_item"
    assert refusal(sealer, "acme", "cmp_2", first) == "wrong_item"
    assert refusal(sealer, "acme", "", first) == "wrong_item"
    assert sealer.open("acme", None, second) == Unsealed("cmp_2", b"cmp_2")


def test_verify_checks_tenant_and_item_without_the_content(sealer):
    token = sealer.seal("us", "cmp_1", b"x" * 1_000_000)

    assert sealer.verify("us", "cmp_1", token) == "cmp_1"
    assert sealer.verify("us", None, token) == "cmp_1"
    for tenant, item_id, reason in (("them", "cmp_1", "undecryptable"), ("us", "cmp_2", "wrong_item")):
        with pytest.raises(InvalidSeal) as caught:
            sealer.verify(tenant, item_id, token)
        assert caught.value.reason == reason


def test_the_message_of_a_refusal_names_the_reason():
    assert str(InvalidSeal("undecryptable")) == "Encrypted content could not be decrypted or parsed."
    assert str(InvalidSeal("wrong_item")) == "Encrypted content item_id did not match the target item id."


def test_a_token_truncated_at_any_length_is_refused(sealer):
    token = sealer.seal("acme", "cmp_1", b"a plan of three steps")

    for length in range(len(token)):
        assert refusal(sealer, "acme", "cmp_1", token[:length]) == "undecryptable"
    data = raw(token)
    for length in range(len(data)):
        assert refusal(sealer, "acme", "cmp_1", as_token(data[:length])) == "undecryptable"


def test_a_token_with_additional_bytes_is_refused(sealer):
    token = sealer.seal("acme", "cmp_1", b"plan")

    for longer in (token + "A", token + "=", token + "\n", " " + token, token + token, as_token(raw(token) + b"\0")):
        assert refusal(sealer, "acme", "cmp_1", longer) == "undecryptable"


@given(data=st.data())
def test_any_flipped_bit_is_refused(sealer, data):
    sealed = raw(sealer.seal("acme", "cmp_1", data.draw(st.binary(max_size=200))))
    position = data.draw(st.integers(0, len(sealed) * 8 - 1))
    sealed[position // 8] ^= 1 << position % 8

    assert refusal(sealer, "acme", "cmp_1", as_token(sealed)) == "undecryptable"


@given(content=st.binary(max_size=4), from_end=st.integers(0, 60), shift=st.integers(1, len(ALPHABET) - 1))
def test_any_changed_character_is_refused_also_one_with_unused_bits(sealer, content, from_end, shift):
    token = sealer.seal("acme", "cmp_1", content)
    for position in (len(token) - 1, len(token) - 1 - from_end):  # only the last character has unused bits
        other = ALPHABET[(ALPHABET.find(token[position]) + shift) % len(ALPHABET)]
        changed = token[:position] + other + token[position + 1 :]

        assert refusal(sealer, "acme", "cmp_1", changed) == "undecryptable"


@pytest.mark.parametrize("character", ["é", " ", "\n", "=", "+", "/", ".", "\0", "\ud800"])
def test_characters_outside_of_the_alphabet_are_refused(sealer, character):
    token = sealer.seal("acme", "cmp_1", b"plan")

    for position in (len(PREFIX), len(PREFIX) + 20, len(token)):
        assert refusal(sealer, "acme", "cmp_1", token[:position] + character + token[position:]) == "undecryptable"


@pytest.mark.parametrize("token", ["", "x", PREFIX, f"{PREFIX}AAAA", "antwort2.AAAA", "gAAAAABmZm9v", f"{PREFIX}ü"])
def test_a_foreign_token_is_refused(sealer, token):
    assert refusal(sealer, "acme", None, token) == "undecryptable"
    assert not sealer.is_own(token)


def test_a_token_of_another_server_is_refused(sealer, path):
    token = Sealer(SealingKeys.open_or_create(path)).seal("acme", "cmp_1", b"plan")

    assert not sealer.is_own(token)
    assert refusal(sealer, "acme", "cmp_1", token) == "undecryptable"


def test_a_token_is_own_as_long_as_its_key_is_kept(path):
    ring = SealingKeys.open_or_create(path)
    token = Sealer(ring).seal("acme", "cmp_1", b"plan")

    assert Sealer(ring.rotate()).is_own(token)
    assert not Sealer(ring.rotate(keep=1)).is_own(token)
    assert Sealer(ring).is_own(token[:-4]), "a truncated token names its key"


def test_a_forged_key_id_is_refused(path):
    ring = SealingKeys.open_or_create(path)
    token = Sealer(ring).seal("acme", "cmp_1", b"plan")
    rotated = ring.rotate()
    forged = bytes.fromhex(rotated.newest.id) + raw(token)[4:]

    assert refusal(Sealer(rotated), "acme", "cmp_1", as_token(forged)) == "undecryptable"


# ── compression ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_content_is_compressed_only_if_that_makes_it_smaller(sealer):
    text, noise = b"the same words again; " * 1000, os.urandom(1000)

    assert len(sealer.seal("acme", "cmp_1", text)) < len(text) // 20
    assert len(raw(sealer.seal("acme", "cmp_1", noise))) == 4 + 12 + 1 + 2 + len("cmp_1") + len(noise) + 16
    assert sealer.open("acme", "cmp_1", sealer.seal("acme", "cmp_1", text)).content == text


def test_content_above_the_limit_is_not_sealed_and_content_at_the_limit_opens(sealer, monkeypatch):
    monkeypatch.setattr("antwort.sealing.MAX_CONTENT", 1000)

    assert sealer.open("acme", None, sealer.seal("acme", "cmp_1", bytes(1000))).content == bytes(1000)
    with pytest.raises(ValueError, match="1001 bytes; at most 1000"):
        sealer.seal("acme", "cmp_1", bytes(1001))


def test_decompression_is_bounded(sealer, monkeypatch):
    bomb = zlib.compress(bytes(4 * MAX_CONTENT), 9)
    with monkeypatch.context() as patch:
        patch.setattr(zlib, "compress", lambda data: bomb)
        token = sealer.seal("acme", "cmp_1", bytes(len(bomb) + 1))
    tracemalloc.start()
    try:
        assert refusal(sealer, "acme", "cmp_1", token) == "undecryptable"
        assert tracemalloc.get_traced_memory()[1] < 3 * MAX_CONTENT
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("stream", [zlib.compress(b"x" * 100)[:-1], b"no zlib stream", b""])
def test_a_broken_compressed_stream_is_refused(sealer, monkeypatch, stream):
    with monkeypatch.context() as patch:
        patch.setattr(zlib, "compress", lambda data: stream)
        token = sealer.seal("acme", "cmp_1", bytes(100))

    assert refusal(sealer, "acme", "cmp_1", token) == "undecryptable"


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_file_is_created_once_and_only_its_owner_may_access_it(path):
    created = SealingKeys.open_or_create(path)
    content = json.loads(path.read_text())

    assert SealingKeys.open_or_create(path).keys == SealingKeys.read(path).keys == created.keys
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (content["version"], len(content["keys"]), content["keys"][0]["id"]) == (1, 1, created.newest.id)
    assert len(base64.urlsafe_b64decode(content["keys"][0]["secret"] + "=")) == 32


def test_an_existing_file_is_opened_without_writing(path):
    SealingKeys.open_or_create(path)
    path.with_name(f".{path.name}.lock").unlink()
    SealingKeys.open_or_create(path)

    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_rotation_keeps_old_tokens_readable_until_their_key_is_dropped(path):
    first = SealingKeys.open_or_create(path)
    sealer = Sealer(first)
    tokens = [sealer.seal("acme", "cmp_1", b"one")]
    for _ in range(2):
        sealer.replace(SealingKeys.read(path).rotate())
        tokens.append(sealer.seal("acme", "cmp_1", b"one"))

    assert [raw(token)[:4].hex() for token in tokens] == [key.id for key in SealingKeys.read(path).keys]
    assert all(sealer.open("acme", "cmp_1", token).content == b"one" for token in tokens)

    sealer.replace(SealingKeys.read(path).rotate(keep=2))
    assert refusal(sealer, "acme", "cmp_1", tokens[0]) == "undecryptable"
    assert refusal(sealer, "acme", "cmp_1", tokens[1]) == "undecryptable"
    assert sealer.open("acme", "cmp_1", tokens[2]).content == b"one"
    assert len(SealingKeys.read(path).keys) == 2


@pytest.mark.parametrize("keep, left", [(None, 4), (1, 1), (3, 3), (9, 4)])
def test_rotation_keeps_the_newest_keys(path, keep, left):
    ring = SealingKeys.open_or_create(path)
    for _ in range(2):
        ring = ring.rotate()
    rotated = ring.rotate(keep=keep)

    assert len(rotated.keys) == left
    assert rotated.keys[:-1] == ring.keys[len(ring.keys) - left + 1 :]
    assert rotated.newest not in ring.keys
    assert SealingKeys.read(path).keys == rotated.keys


def test_rotation_needs_a_key_to_keep_and_an_existing_file(path):
    ring = SealingKeys.open_or_create(path)
    with pytest.raises(ValueError, match="at least 1"):
        ring.rotate(keep=0)
    path.unlink()
    with pytest.raises(SealingKeysError, match="antwort keys rotate-compaction"):
        ring.rotate()
    assert not path.exists()


def test_concurrent_rotations_lose_no_key(path):
    ring = SealingKeys.open_or_create(path)
    run_at_once(ring.rotate, 8)

    assert len({key.id for key in SealingKeys.read(path).keys}) == 9


def test_concurrent_creation_in_threads_ends_with_one_key(path):
    created = run_at_once(lambda: SealingKeys.open_or_create(path), 8)

    assert len({ring.keys for ring in created}) == 1


def test_concurrent_creation_in_processes_ends_with_one_key(path):
    code = (
        "import sys; from pathlib import Path; from antwort.sealing import SealingKeys; print('ready', flush=True);"
        "sys.stdin.readline(); print(SealingKeys.open_or_create(Path(sys.argv[1])).newest.id)"
    )
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen([sys.executable, "-c", code, path], stdin=pipe, stdout=pipe, text=True) for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    outputs = []
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        outputs.append(process.communicate()[0].strip())
        assert process.returncode == 0

    assert set(outputs) == {SealingKeys.read(path).newest.id}


def run_at_once(function, count):
    barrier, results = threading.Barrier(count), []

    def run() -> None:
        barrier.wait()
        results.append(function())

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == count
    return results


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_file_that_other_users_may_access_is_rejected(path, mode):
    SealingKeys.open_or_create(path)
    path.chmod(mode)
    for use in (SealingKeys.read, SealingKeys.open_or_create):
        with pytest.raises(SealingKeysError, match="chmod 600"):
            use(path)


KEY = {"id": "0123abcd", "secret": "A" * 43, "created_at": 1}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        {"version": 1, "keys": []},
        {"keys": [KEY]},
        {"version": 2, "keys": [KEY]},
        {"version": 1, "keys": [KEY], "more": 1},
        {"version": 1, "keys": [KEY, KEY]},
        {"version": 1, "keys": [{**KEY, "id": "0123ABCD"}]},
        {"version": 1, "keys": [{**KEY, "secret": "A" * 42}]},
        {"version": 1, "keys": [{**KEY, "secret": "A" * 42 + "B"}]},
        {"version": 1, "keys": [{**KEY, "secret": "A" * 43 + "\n"}]},
    ],
)
def test_an_invalid_file_is_rejected_and_left_unchanged(path, content):
    text = content if isinstance(content, str) else json.dumps(content)
    path.parent.mkdir()
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(SealingKeysError, match="is not a file of sealing keys") as caught:
        SealingKeys.open_or_create(path)
    assert "A" * 20 not in str(caught.value)
    assert path.read_text() == text


def test_a_missing_file_and_a_directory_are_errors_that_say_what_to_do(path, tmp_path):
    with pytest.raises(SealingKeysError, match="`antwort keys rotate-compaction` creates the file"):
        SealingKeys.read(path)
    with pytest.raises(SealingKeysError, match="cannot be read"):
        SealingKeys.open_or_create(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(SealingKeysError, match="cannot be read"):
        SealingKeys.open_or_create(tmp_path / "file" / "keys.json")


def test_a_file_that_cannot_be_written_is_an_error_that_names_the_setting(path, monkeypatch):
    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(SealingKeysError, match=r"No space left.*compaction\.keys_file"):
        SealingKeys.open_or_create(path)
    assert not path.exists()


def test_representations_contain_no_secret(keys):
    assert keys.newest.secret not in repr(keys.keys) + str(keys) + repr(Sealer(keys))


def test_a_signature_is_valid_for_its_tenant_and_message_only(sealer):
    signature = sealer.sign("us", b"a message")

    assert len(signature) == 32
    assert sealer.is_signed("us", b"a message", signature)
    for tenant, message, other in (
        ("them", b"a message", signature),
        ("us", b"another message", signature),
        ("us", b"a message", "0" * 32),
        ("us", b"a message", ""),
        ("us", b"a message", "\u0660" * 32),
        ("usa", b" message", signature),
    ):
        assert not sealer.is_signed(tenant, message, other)


def test_a_signature_stays_valid_when_the_key_is_rotated(tmp_path):
    path = tmp_path / "keys.json"
    keys = SealingKeys.open_or_create(path)
    signature = Sealer(keys).sign("us", b"a message")
    after = Sealer(keys.rotate())

    assert after.is_signed("us", b"a message", signature)
    assert after.sign("us", b"a message") != signature
