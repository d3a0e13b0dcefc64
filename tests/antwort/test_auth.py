from __future__ import annotations

import stat
import threading

import pytest

from antwort.api.errors import ApiError
from antwort.auth import LOCAL, Authenticator, Caller, KeyFile, KeyFileError, ProcessRateLimiter


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def file(tmp_path):
    return KeyFile(tmp_path / "keys" / "keys.json")


def test_a_key_authenticates_and_only_its_hash_is_stored(file):
    key, secret = file.create("me", "acme", requests_per_minute=5)
    caller = Authenticator(file.read()).authenticate(f"Bearer {secret}")

    assert caller == Caller("acme", key.id, 5, None)
    assert secret.rpartition("-")[2] not in file.path.read_text()
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


def test_a_key_file_exists_also_if_it_cannot_be_read_and_an_unknown_state_is_an_error(file, tmp_path):
    assert not file.exists()
    file.path.parent.mkdir()
    file.path.symlink_to("nowhere")
    assert file.exists()
    (tmp_path / "file").touch()
    with pytest.raises(KeyFileError, match="Cannot tell whether there is a key file"):
        KeyFile(tmp_path / "file" / "keys.json").exists()


def test_keys_without_limits_get_the_defaults(file):
    _, secret = file.create("me", "acme", concurrent_responses=2)
    caller = Authenticator(file.read(), defaults=Caller("", "", 60, 9)).authenticate(f"bearer {secret}")

    assert (caller.requests_per_minute, caller.concurrent_responses) == (60, 2)


@pytest.mark.parametrize("change", ["", "x", "Bearer", "Bearer x", "Basic {secret}", "Bearer {secret}x", "{secret}"])
def test_invalid_authorization_headers_are_rejected(file, change):
    _, secret = file.create("me", "acme")
    with pytest.raises(ApiError) as caught:
        Authenticator(file.read()).authenticate(change.format(secret=secret) or None)
    assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")
    assert secret not in caught.value.message


def test_a_revoked_key_is_rejected(file):
    key, secret = file.create("me", "acme")
    _, other = file.create("you", "acme")
    authenticator = Authenticator(file.read())

    assert file.revoke(key.id)
    assert file.revoke(key.id)
    assert not file.revoke("0000")
    authenticator.replace(file.read())
    assert authenticator.authenticate(f"Bearer {other}").tenant == "acme"
    assert authenticator.count == 1
    with pytest.raises(ApiError):
        authenticator.authenticate(f"Bearer {secret}")


def test_an_empty_key_file_rejects_every_request():
    authenticator = Authenticator([])

    assert authenticator.requires_key
    with pytest.raises(ApiError):
        authenticator.authenticate(None)


def test_without_keys_every_caller_is_local():
    assert Authenticator(None).authenticate(None) == LOCAL
    assert not Authenticator(None).requires_key


def test_without_keys_all_callers_share_the_default_limits():
    defaults = Caller(LOCAL.tenant, LOCAL.key_id, 2, 1)

    assert Authenticator(None, defaults=defaults).authenticate(None) == defaults


def test_a_key_file_that_other_users_may_read_is_rejected(file):
    file.create("me", "acme")
    file.path.chmod(0o640)
    with pytest.raises(KeyFileError, match="chmod 600"):
        file.read()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"keys": [{}]}', '{"keyz": []}'])
def test_an_invalid_key_file_is_rejected(file, content):
    file.path.parent.mkdir()
    file.path.write_text(content)
    file.path.chmod(0o600)
    with pytest.raises(KeyFileError):
        file.read()


def test_an_invalid_tenant_name_is_rejected(file):
    with pytest.raises(KeyFileError):
        file.create("me", "a/../b")
    with pytest.raises(KeyFileError, match="antwort keys create"):
        file.read()


def test_concurrent_creation_loses_no_key(file):
    threads = [threading.Thread(target=file.create, args=(str(number), "t")) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(key.name for key in file.read()) == sorted(map(str, range(8)))


@pytest.mark.anyio
async def test_the_token_bucket_refills_evenly():
    clock = Clock()
    limiter, caller = ProcessRateLimiter(clock), Caller("t", "k", requests_per_minute=60)

    async def left() -> int | None:
        allowance = await limiter.take(caller)
        return allowance.remaining if allowance else None

    assert [await left() for _ in range(60)] == list(range(59, -1, -1))
    with pytest.raises(ApiError) as caught:
        await limiter.take(caller)
    assert (caught.value.status, caught.value.retry_after) == (429, 1)
    clock.now += 1.5
    await limiter.take(caller)
    with pytest.raises(ApiError):
        await limiter.take(caller)
    clock.now += 3600
    assert await left() == 59
    assert await limiter.take(Caller("t", "other")) is None


@pytest.mark.anyio
async def test_the_concurrency_limit_and_its_idempotent_release():
    limiter, caller = ProcessRateLimiter(), Caller("t", "k", concurrent_responses=2)
    first, _ = await limiter.begin(caller), await limiter.begin(caller)
    with pytest.raises(ApiError, match="at a time"):
        await limiter.begin(caller)
    first()
    first()
    await limiter.begin(caller)
    with pytest.raises(ApiError):
        await limiter.begin(caller)
    (await limiter.begin(Caller("t", "free")))()


@pytest.mark.anyio
async def test_a_resumed_response_is_counted_even_above_the_limit():
    limiter, caller = ProcessRateLimiter(), Caller("t", "k", concurrent_responses=1)
    releases = [await limiter.resume(caller), await limiter.resume(caller)]
    with pytest.raises(ApiError, match="at a time"):
        await limiter.begin(caller)
    for release in releases:
        release()
    await limiter.begin(caller)


def test_the_caller_of_a_key_is_found_until_it_is_revoked(file):
    key, _ = file.create("key", "a", concurrent_responses=3)
    authenticator = Authenticator(file.read())

    assert authenticator.caller_for_key(key.id) == Caller("a", key.id, None, 3)
    file.revoke(key.id)
    authenticator.replace(file.read())
    assert authenticator.caller_for_key(key.id) is None
    assert Authenticator(None).caller_for_key(LOCAL.key_id) == LOCAL
    assert Authenticator(None).caller_for_key(key.id) is None
