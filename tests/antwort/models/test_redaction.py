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
        ("token=abcdefg12345", "token=[redacted]"),
        ("token: baz", "token: [redacted]"),
        ("login failed: unexpected key: password=foo", "login failed: unexpected key: password=[redacted]"),
        ("token=pineapple-42)", "token=[redacted])"),
        ("(token=pineapple-42 token=foo)", "(token=[redacted] token=[redacted])"),
        ("secret_key=hunter2hunter2", "secret_key=[redacted]"),
        ("aws_secret_access_key=foo", "aws_secret_access_key=[redacted]"),
        ("private_key: bar", "private_key: [redacted]"),
        ("access_key=quux, pass=foo and pwd=bar", "access_key=[redacted], pass=[redacted] and pwd=[redacted]"),
        ("apiKey=foo&accessToken=bar", "apiKey=[redacted]"),
        ('{"password": "correct horse battery", "x": 1}', '{"password": "[redacted]", "x": 1}'),
        ('{\\"password\\": \\"foo\\"}', '{\\"password\\": \\"[redacted]"}'),
        ("max_tokens=9, tokens: abcdefg12345", "max_tokens=9, tokens: [redacted]"),
        ("api key abc123xyz is invalid", "api key [redacted] is invalid"),
        ("Incorrect API key provided: abc123xyz", "Incorrect API key provided: [redacted]"),
        ("key abCd-1234_efGH5678ijkl9012-mnop3456qr is wrong", "key [redacted] is wrong"),
        ("key abcd1234-efgh5678-ijkl9012-mnop3456 is wrong", "key [redacted] is wrong"),
        ("key 550e8400-e29b-41d4-a716-446655440000 is wrong", "key [redacted] is wrong"),
        ("key tok_68af5d6e3c2081908e3f4b5c6d7e8f90 is wrong", "key [redacted] is wrong"),
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
        "http%3A%2F%2F10.0.0.5%3A8000",
        "https%253A%252F%252Fgpu-9%253A8000%252Fv1",
    ],
)
def test_addresses_are_removed(address):
    assert REDACTOR.redact(f"at {address} failed") == "at [address] failed"


@pytest.mark.parametrize(
    "message, redacted",
    [
        (
            "HTTPConnectionPool(host='inference-backend', port=8000): Max retries exceeded",
            "HTTPConnectionPool(host='[address]', port=[address]): Max retries exceeded",
        ),
        ('{"hostname": "gpu9", "Host": "gpu8"}', '{"hostname": "[address]", "Host": "[address]"}'),
        ("next=%3Fto%3Dhttp%3A%2F%2Fgpu9%2F and", "next=%3Fto%3D[address] and"),
    ],
)
def test_named_hosts_are_removed(message, redacted):
    assert REDACTOR.redact(message) == redacted


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
        "max_tokens: must be > 0",
        "max_completion_tokens: Input should be at most 8192; prompt_tokens=5000, max_new_tokens: 4096.",
        "unknown parameter 'top_k'; unexpected key: top_k; KeyError: 'messages'",
        "body.password: Field required; api_key: None; host: must be a string; port: must be a number",
        "The model gpt-5.6-codex-mini is not Qwen3-Coder-480B-A35B-Instruct-FP8 or a token 128000 of them",
        "Unknown tool mcp__code_repository__search_issues_by_label_2025_08_26 and its description",
        "The token limit is 4096, and the password is wrong; stop_token_ids: [151643]",
        "No tool output found for function call call_68af5d6e3c2081908e3f4b5c6d7e8f90.",
    ],
)
def test_messages_without_secrets_are_unchanged(message):
    assert REDACTOR.redact(message) == message


def test_control_characters_are_removed_and_the_message_is_one_line():
    assert REDACTOR.redact("a\x00b\x1b[31m\r\nc\u202ed\u2028e\tf") == "ab[31m cd e f"


UNITS = ["x", "a.", "1:", "sk-", "Bearer ", "authorization ", "api_key", "::1 ", "a://", "-", "a%3A", "http%3a%2f"]
PAIR_UNITS = ["key=", "token ", "token: '", 'key="', "a1-", "_9a", "api key ", "host=a ", '\\"', "key: "]


@pytest.mark.parametrize("unit", UNITS + PAIR_UNITS)
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
