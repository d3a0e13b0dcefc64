from __future__ import annotations

import pytest

from antwort.api.errors import ApiError
from antwort.containers.registry import HeldElsewhere
from antwort.containers.replicas.calls import (
    CALLS_PATH,
    CallTokens,
    DeleteFileCall,
    InvalidCall,
    PrepareCall,
    decode_call,
    decode_header,
    encode_call,
    encode_header,
    to_call_error,
)
from antwort.containers.sandboxes.port import SandboxLost, SandboxRefused, SandboxTimeout, SandboxUnavailable
from antwort.engine.stores import Owner, SandboxRef, StoreFault
from antwort.sealing import Sealer, SealingKeys

OWNER = Owner("tenant", "key-1")
HELD = SandboxRef("rep_1", "sess_1")
PATH = f"{CALLS_PATH}cntr_1"
ARGUMENTS = encode_call(PrepareCall())


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def sealer(tmp_path):
    return Sealer(SealingKeys.open_or_create(tmp_path / "keys.json"))


@pytest.fixture
def caller(sealer, clock):
    return CallTokens(sealer, "rep_2", clock)


@pytest.fixture
def holder(sealer, clock):
    return CallTokens(sealer, "rep_1", clock)


def header(token: str) -> str:
    return f"Replica {token}"


def rejection(holder, authorization, path=PATH) -> str:
    with pytest.raises(InvalidCall) as error:
        holder.verify(authorization, path)
    return str(error.value)


def test_a_token_names_the_call(caller, holder):
    token = holder.verify(header(caller.issue(OWNER, "cntr_1", HELD, ARGUMENTS)), PATH)

    assert (token.owner, token.sender, token.target, token.sandbox) == (OWNER, "rep_2", "rep_1", "sess_1")
    token.check_arguments(ARGUMENTS)
    with pytest.raises(InvalidCall):
        token.check_arguments(encode_call(DeleteFileCall("cfile_1")))


def test_a_token_is_accepted_once_and_for_a_minute(caller, holder, clock):
    used, late = (header(caller.issue(OWNER, "cntr_1", HELD, ARGUMENTS)) for _ in range(2))
    holder.verify(used, PATH)
    assert "used before" in rejection(holder, used)
    clock.now += 60
    assert "used before" in rejection(holder, used)
    holder.verify(late, PATH)
    clock.now += 1
    assert "expired" in rejection(holder, used)


def test_used_tokens_are_forgotten_when_they_have_expired(caller, holder, clock):
    for _ in range(50):
        for _ in range(10):
            holder.verify(header(caller.issue(OWNER, "cntr_1", HELD, ARGUMENTS)), PATH)
        clock.now += 10
    assert len(holder._used) == len(holder._used_until) <= 10 * 14


@pytest.mark.parametrize("ahead", [-61, 61])
def test_clocks_that_differ_too_much_are_named(sealer, holder, clock, ahead):
    other = CallTokens(sealer, "rep_2", lambda: clock.now + ahead)
    assert "clocks differ" in rejection(holder, header(other.issue(OWNER, "cntr_1", HELD, ARGUMENTS)))


def test_a_token_is_valid_for_one_replica_and_path(caller, holder):
    token = header(caller.issue(OWNER, "cntr_1", HELD, ARGUMENTS))
    assert "another container" in rejection(holder, token, CALLS_PATH + "cntr_2")
    elsewhere = header(caller.issue(OWNER, "cntr_1", SandboxRef("rep_3", "sess_1"), ARGUMENTS))
    assert "another replica" in rejection(holder, elsewhere)


def test_nothing_else_is_a_token(caller, holder, sealer, tmp_path):
    token = caller.issue(OWNER, "cntr_1", HELD, ARGUMENTS)
    foreign = CallTokens(Sealer(SealingKeys.open_or_create(tmp_path / "other.json")), "rep_2")
    for authorization in (
        "",
        f"Bearer {token}",
        header(""),
        header(token[:-1]),
        header(foreign.issue(OWNER, "cntr_1", HELD, ARGUMENTS)),
        header(sealer.seal("tenant", "replica-call", b"{}")),
        header(sealer.seal("\0replica call", "cmp_1", b"{}")),
        header(sealer.seal("\0replica call", "replica-call", b"{}")),
    ):
        rejection(holder, authorization)


def test_arguments_pass_through_the_header():
    call = DeleteFileCall("cfile_ü\r\n")
    assert decode_call(decode_header(encode_header(encode_call(call)))) == call
    assert decode_header("*") == b""


@pytest.mark.parametrize(
    "error",
    [
        ApiError(429, "m", kind="insufficient_quota", code="insufficient_quota", param="p", should_retry=False),
        ApiError(503, "m", retry_after=3),
        SandboxLost("m", begun=False),
        SandboxLost("m"),
        SandboxRefused("m", "missing"),
        StoreFault("m"),
        SandboxUnavailable("m"),
    ],
    ids=repr,
)
def test_errors_are_raised_again(error):
    again = to_call_error(error).to_exception()

    assert (type(again), str(again)) == (type(error), str(error))
    assert vars(again) == vars(error)


def test_other_errors_become_a_general_one():
    assert isinstance(to_call_error(HeldElsewhere()).to_exception(), HeldElsewhere)
    assert type(to_call_error(SandboxTimeout("m")).to_exception()) is SandboxUnavailable
    unexpected = to_call_error(ValueError("secret")).to_exception()
    assert isinstance(unexpected, ApiError)
    assert (unexpected.status, "secret" in unexpected.message) == (500, False)
