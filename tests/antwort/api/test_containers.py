from __future__ import annotations

import msgspec
import pytest

from antwort.api.containers import CreateContainer, ExecuteCode, check
from antwort.api.errors import ApiError
from antwort.api.requests import decode


def parse(body):
    request = decode(msgspec.json.encode(body), CreateContainer)
    check(request)
    return request


def test_every_openai_parameter_is_accepted():
    body = {
        "name": "x",
        "expires_after": {"anchor": "last_active_at", "minutes": 20},
        "file_ids": ["file-1"],
        "memory_limit": "4g",
        "network_policy": {"type": "disabled"},
        "skills": [],
    }
    request = parse(body)

    assert msgspec.to_builtins(request) == {
        **body,
        "network_policy": {"type": "disabled", "allowed_domains": None, "domain_secrets": None},
    }
    assert parse({"name": "x", **dict.fromkeys(body.keys() - {"name"})}) == CreateContainer(name="x")


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"network_policy": {"type": "allowlist", "allowed_domains": ["a"]}}, "network_policy.type"),
        ({"network_policy": {"type": "open"}}, "network_policy.type"),
        ({"name": None}, "name"),
        ({"expires_after": {"anchor": "last_active_at", "minutes": 1.5}}, "expires_after.minutes"),
    ],
)
def test_unsupported_values_are_rejected_with_their_parameter(fields, param):
    with pytest.raises(ApiError) as error:
        parse({"name": "x", **fields})

    assert (error.value.status, error.value.param) == (400, param)


def test_the_exec_timeout_must_be_positive():
    assert decode(b'{"code": "1", "timeout": 1}', ExecuteCode).timeout == 1
    with pytest.raises(ApiError):
        decode(b'{"code": "1", "timeout": -1}', ExecuteCode)
