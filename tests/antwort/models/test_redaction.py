from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.models.redaction import MAX_MESSAGE_LENGTH, Redactor

REDACTOR = Redactor(
    "https://bob:p%40ss-word@gpu-7.corp.example:8443/v1?sig=qqq111",
    api_key="pineapple-42",
    headers={"x-team": "team-9-key", "authorization": "Token abc def"},
)


@pytest.mark.parametrize(
    "secret",
    [
        "pineapple-42",
        "PINEAPPLE-42",
        "team-9-key",
        "Token abc def",
        "p@ss-word",
        "p%40ss-word",
        "Ym9iOnBAc3Mtd29yZA==",
        "qqq111",
        "pineapple\u200b-42",
    ],
)
def test_the_secrets_of_the_upstream_are_removed(secret):
    assert REDACTOR.redact(f"The value <{secret}> is wrong.") == "The value <[redacted]> is wrong."


@pytest.mark.parametrize(
    "message, redacted",
    [
        ("got Authorization: Bearer other key\nbody: x", "got Authorization: [redacted] body: x"),
        ("{'Authorization': 'Basic a b', 'x': 1}", "{'Authorization': '[redacted]', 'x': 1}"),
        ('{"Cookie": "a=b; c=d", "x": 1}', '{"Cookie": "[redacted]", "x": 1}'),
        ("Bearer abc.def is expired", "Bearer [redacted] is expired"),
        ("x-api-key: 12345, retry", "x-api-key: [redacted], retry"),
        ("password=hunter2 user=x", "password=[redacted] user=x"),
        ("Incorrect API key provided: sk-pr****7890.", "Incorrect API key provided: [redacted]"),
        ("key AIzaSyA-1234567890 and hf_aB3dE and ghp_1a2b3c", "key [redacted] and [redacted] and [redacted]"),
        ("in organization org-a1b2c3d4", "in organization [redacted]"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.x-y", "[redacted]"),
        ("digest 0123456789abcdef0123456789abcdef", "digest [redacted]"),
    ],
)
def test_what_looks_like_a_secret_is_removed(message, redacted):
    assert REDACTOR.redact(message) == redacted


@pytest.mark.parametrize(
    "address",
    [
        "http://10.0.0.7:8000/v1/models?key=1",
        "gpu-7.corp.example",
        "GPU-7.corp.example:8443",
        "10.0.0.7",
        "10.0.0.7:8000",
        "[fe80::1]:80",
        "::1",
        "2001:db8::7",
        "localhost:11434",
        "vllm-0.svc.cluster.local",
        "node.weird-domain:9000",
    ],
)
def test_addresses_are_removed(address):
    assert REDACTOR.redact(f"at {address} failed") == "at [address] failed"


def test_a_host_that_is_a_plain_word_is_removed_with_its_port_only():
    redactor = Redactor("http://vllm:8000/v1")

    assert redactor.redact("vLLM has no tools; asked vllm:8000") == "vLLM has no tools; asked [address]"


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4000 in messages).",
        "Invalid schema for function 'mcp__files__read_2024_v2': In context=('properties',), 'x' is not permitted.",
        "Item 'fc_68af5d6e3c2081908e3f4b5c6d7e8f9011223344' was provided without its 'rs_68af5d6e3c208190' item.",
        "The model `Qwen/Qwen2.5-Coder-32B-Instruct-GPTQ-Int4` does not support tools.",
        "messages.0.content: field required, see std::vector, main.py, 12:30:45 and version 1.2.3",
        "temperature must be between 0.0 and 2.0; basic usage only",
    ],
)
def test_messages_without_secrets_are_unchanged(message):
    assert REDACTOR.redact(message) == message


def test_control_characters_are_removed_and_the_message_is_one_line():
    assert REDACTOR.redact("a\x00b\x1b[31m\r\nc\u202ed\u2028e\tf") == "ab[31m cd e f"


@pytest.mark.parametrize("unit", ["x", "a.", "1:", "sk-", "Bearer ", "authorization ", "api_key", "::1 ", "a://", "-"])
def test_a_long_message_is_shortened_in_linear_time(unit):
    assert len(REDACTOR.redact(unit * 100_000)) <= MAX_MESSAGE_LENGTH


def test_a_secret_at_the_cut_is_not_shown_in_part():
    shown = REDACTOR.redact(f"{'http://' + 'x' * 3970} pineapple-42 and more {'y' * 100}")

    assert "pine" not in shown


@given(st.text(), st.text())
def test_no_text_around_it_reveals_a_secret(before, after):
    assert "pineapple-42" not in REDACTOR.redact(f"{before}pineapple-42{after}")


def test_an_invalid_url_has_no_secrets():
    assert Redactor("http://[::1").redact("fine") == "fine"
    assert Redactor("").redact("fine") == "fine"
