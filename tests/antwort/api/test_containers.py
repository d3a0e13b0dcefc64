from __future__ import annotations

import msgspec
import pytest

from antwort.api.containers import CreateContainer, ExecuteCode, check
from antwort.api.errors import ApiError
from antwort.api.requests import decode


def read(body):
    asked = decode(msgspec.json.encode(body), CreateContainer)
    check(asked)
    return asked


def test_what_openai_takes_is_taken():
    whole = {
        "name": "x",
        "expires_after": {"anchor": "last_active_at", "minutes": 20},
        "file_ids": ["file-1"],
        "memory_limit": "4g",
        "network_policy": {"type": "disabled"},
        "skills": [],
    }
    asked = read(whole)

    assert msgspec.to_builtins(asked) == {
        **whole,
        "network_policy": {"type": "disabled", "allowed_domains": None, "domain_secrets": None},
    }
    assert read({"name": "x", **dict.fromkeys(whole.keys() - {"name"})}) == CreateContainer(name="x")


@pytest.mark.parametrize(
    "more, param",
    [
        ({"network_policy": {"type": "allowlist", "allowed_domains": ["a"]}}, "network_policy.type"),
        ({"network_policy": {"type": "open"}}, "network_policy.type"),
        ({"skills": [{"type": "inline"}]}, "skills"),
        ({"name": None}, "name"),
        ({"expires_after": {"anchor": "last_active_at", "minutes": 1.5}}, "expires_after.minutes"),
    ],
)
def test_what_cannot_be_here_is_refused_by_name(more, param):
    with pytest.raises(ApiError) as error:
        read({"name": "x", **more})

    assert (error.value.status, error.value.param) == (400, param)


def test_code_to_run_is_checked_too():
    assert decode(b'{"code": "1", "timeout": 1}', ExecuteCode).timeout == 1
    with pytest.raises(ApiError):
        decode(b'{"code": "1", "timeout": -1}', ExecuteCode)
