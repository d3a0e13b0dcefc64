from __future__ import annotations

import stat
import threading

import pytest

from antwort.api.errors import ApiError
from antwort.auth import LOCAL, Authenticator, Caller, KeyFile, KeyFileError, RateLimiter, is_loopback


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def file(tmp_path):
    return KeyFile(tmp_path / "keys" / "keys.json")


def test_a_key_opens_the_door_and_only_its_hash_is_kept(file):
    key, secret = file.create("me", "acme", requests_per_minute=5)
    caller = Authenticator(file.read()).authenticate(f"Bearer {secret}")

    assert caller == Caller("acme", key.id, 5, None)
    assert secret.rpartition("-")[2] not in file.path.read_text()
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


def test_keys_without_limits_of_their_own_get_the_usual_ones(file):
    _, secret = file.create("me", "acme", concurrent_responses=2)
    caller = Authenticator(file.read(), defaults=Caller("", "", 60, 9)).authenticate(f"bearer {secret}")

    assert (caller.requests_per_minute, caller.concurrent_responses) == (60, 2)


@pytest.mark.parametrize("change", ["", "x", "Bearer", "Bearer x", "Basic {secret}", "Bearer {secret}x", "{secret}"])
def test_everything_else_is_refused(file, change):
    _, secret = file.create("me", "acme")
    with pytest.raises(ApiError) as caught:
        Authenticator(file.read()).authenticate(change.format(secret=secret) or None)
    assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")
    assert secret not in caught.value.message


def test_a_revoked_key_opens_nothing(file):
    key, secret = file.create("me", "acme")
    _, other = file.create("you", "acme")
    door = Authenticator(file.read())

    assert file.revoke(key.id)
    assert file.revoke(key.id)
    assert not file.revoke("0000")
    door.replace(file.read())
    assert door.authenticate(f"Bearer {other}").tenant == "acme"
    assert door.count == 1
    with pytest.raises(ApiError):
        door.authenticate(f"Bearer {secret}")


def test_an_empty_file_of_keys_lets_nobody_in():
    door = Authenticator([])

    assert door.requires_key
    with pytest.raises(ApiError):
        door.authenticate(None)


def test_without_keys_everybody_is_local():
    assert Authenticator(None).authenticate(None) == LOCAL
    assert not Authenticator(None).requires_key


def test_without_keys_all_share_the_usual_limits():
    usual = Caller(LOCAL.tenant, LOCAL.key_id, 2, 1)

    assert Authenticator(None, defaults=usual).authenticate(None) == usual


def test_keys_that_others_may_read_are_refused(file):
    file.create("me", "acme")
    file.path.chmod(0o640)
    with pytest.raises(KeyFileError, match="chmod 600"):
        file.read()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"keys": [{}]}', '{"keyz": []}'])
def test_what_is_no_file_of_keys_is_refused(file, content):
    file.path.parent.mkdir()
    file.path.write_text(content)
    file.path.chmod(0o600)
    with pytest.raises(KeyFileError):
        file.read()


def test_a_tenant_has_a_plain_name(file):
    with pytest.raises(KeyFileError):
        file.create("me", "a/../b")
    with pytest.raises(KeyFileError, match="antwort keys create"):
        file.read()


def test_two_who_make_keys_at_once_both_get_theirs(file):
    threads = [threading.Thread(target=file.create, args=(str(number), "t")) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(key.name for key in file.read()) == sorted(map(str, range(8)))


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "LOCALHOST.", "::ffff:127.0.0.1"]
)
def test_addresses_of_this_machine_only(host):
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "::", "10.0.0.1", "example.com", "", "127.1", "localhost.evil"],  # noqa: S104 - nobody binds
)
def test_addresses_that_others_reach(host):
    assert not is_loopback(host)


def test_a_bucket_refills_evenly():
    clock = Clock()
    limits, caller = RateLimiter(clock), Caller("t", "k", requests_per_minute=60)

    def left() -> int | None:
        allowance = limits.take(caller)
        return allowance.remaining if allowance else None

    assert [left() for _ in range(60)] == list(range(59, -1, -1))
    with pytest.raises(ApiError) as caught:
        limits.take(caller)
    assert (caught.value.status, caught.value.retry_after) == (429, 1)
    clock.now += 1.5
    limits.take(caller)
    with pytest.raises(ApiError):
        limits.take(caller)
    clock.now += 3600
    assert left() == 59
    assert limits.take(Caller("t", "other")) is None


def test_so_many_at_once_and_each_ends_once():
    limits, caller = RateLimiter(), Caller("t", "k", concurrent_responses=2)
    first, _ = limits.begin(caller), limits.begin(caller)
    with pytest.raises(ApiError, match="at a time"):
        limits.begin(caller)
    first()
    first()
    limits.begin(caller)
    with pytest.raises(ApiError):
        limits.begin(caller)
    limits.begin(Caller("t", "free"))()


def test_what_was_let_in_before_counts_also_where_it_is_one_too_many():
    limits, caller = RateLimiter(), Caller("t", "k", concurrent_responses=1)
    ends = [limits.resume(caller), limits.resume(caller)]
    with pytest.raises(ApiError, match="at a time"):
        limits.begin(caller)
    for end in ends:
        end()
    limits.begin(caller)


def test_who_has_a_key_is_known_until_it_is_revoked(file):
    key, _ = file.create("ours", "a", concurrent_responses=3)
    door = Authenticator(file.read())

    assert door.caller_for_key(key.id) == Caller("a", key.id, None, 3)
    file.revoke(key.id)
    door.replace(file.read())
    assert door.caller_for_key(key.id) is None
    assert Authenticator(None).caller_for_key(LOCAL.key_id) == LOCAL
    assert Authenticator(None).caller_for_key(key.id) is None
