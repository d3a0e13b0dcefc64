from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from antwort.models import upstream_errors
from antwort.models.redaction import Redactor
from antwort.models.upstream_errors import (
    UpstreamError,
    fault_from_response,
    fault_from_stream_error,
    parse_error,
    parse_error_body,
    parse_retry_after,
)

REDACT = Redactor("http://10.0.0.7:8000/v1", api_key="sk-secret").redact


def fault_for(status, body=b"", headers=None):
    return fault_from_response(status, headers or {}, parse_error_body(body), model="mine", redact=REDACT)


@pytest.mark.parametrize(
    "status, body, fault_status, code, retryable",
    [
        (401, b'{"error":{"message":"Incorrect API key provided: sk-123"}}', 502, "server_error", False),
        (403, b"Forbidden", 502, "server_error", False),
        (404, b'{"error":{"code":"model_not_found","message":"x"}}', 400, "model_not_found", False),
        (
            404,
            b'{"object":"error","message":"The model `x` does not exist.","code":404}',
            400,
            "model_not_found",
            False,
        ),
        (404, b'{"error":"model \\"x\\" not found, try pulling it first"}', 400, "model_not_found", False),
        (404, b'{"detail":"Not Found"}', 502, "server_error", False),
        (429, b'{"error":{"code":"rate_limit_exceeded"}}', 429, "rate_limit_exceeded", True),
        (429, b"", 429, "rate_limit_exceeded", True),
        (429, b'{"error":{"code":"insufficient_quota","message":"check billing"}}', 429, "insufficient_quota", False),
        (400, b'{"error":{"code":"context_length_exceeded"}}', 400, "context_length_exceeded", False),
        (
            400,
            b'{"object":"error","message":"This model\'s maximum context length is 4096 tokens."}',
            400,
            "context_length_exceeded",
            False,
        ),
        (
            400,
            b'{"error":{"code":400,"type":"exceed_context_size_error","message":"too big","n_ctx":4096}}',
            400,
            "context_length_exceeded",
            False,
        ),
        (
            500,
            b'{"error":{"message":"the request exceeds the available context size"}}',
            400,
            "context_length_exceeded",
            False,
        ),
        (400, b'{"error":{"code":"content_filter"}}', 400, "invalid_prompt", False),
        (400, b'{"error":{"code":"invalid_encrypted_content"}}', 400, "invalid_encrypted_content", False),
        (400, b'{"error":{"message":"something at 10.0.0.7"}}', 400, "invalid_prompt", False),
        (400, b'[{"error":{"code":400,"message":"API key not valid."}}]', 502, "server_error", False),
        (400, b'{"error":{"code":400,"message":"API key not valid. Pass a valid one."}}', 502, "server_error", False),
        (400, b'{"error":{"message":"no","code":"invalid_api_key"}}', 502, "server_error", False),
        (400, b'{"error":{"message":"no","type":"authentication_error"}}', 502, "server_error", False),
        (400, b'{"error":{"message":"Incorrect API key provided: x"}}', 502, "server_error", False),
        (400, b'{"error":{"message":"API key expired. Please renew it."}}', 502, "server_error", False),
        (400, b'{"error":{"message":"Invalid message: \'incorrect api key\'"}}', 400, "invalid_prompt", False),
        (400, b'{"error":{"message":"This model does not accept the unknown \'k\'."}}', 400, "invalid_prompt", False),
        (400, b'{"error":{"message":"Unknown model: x"}}', 400, "model_not_found", False),
        (400, b'{"error":{"message":"The model `x` is unknown."}}', 400, "model_not_found", False),
        (422, b'{"detail":[{"loc":["body"]}]}', 400, "invalid_prompt", False),
        (413, b"too large", 413, "request_too_large", False),
        (500, b"<html>", 502, "server_error", True),
        (503, b'{"error":{"message":"Loading model"}}', 503, "server_error", True),
        (504, b"", 504, "server_error", True),
        (408, b"", 504, "server_error", True),
        (302, b"", 502, "server_error", False),
        (418, b"", 502, "server_error", False),
    ],
)
def test_error_responses_are_mapped(status, body, fault_status, code, retryable):
    fault = fault_for(status, body)

    assert (fault.status, fault.code, fault.retryable) == (fault_status, code, retryable)


@pytest.mark.parametrize(
    "body",
    [
        b'{"error":{"message":"%s","code":"%s","type":"%s"}}' % ((b"model " * 10_000,) * 3),
        b'{"error":"%s"}' % (b"model " * 10_000),
        b'{"detail":[{"loc":["body"],"msg":"%s"}]}' % (b"model " * 10_000),
        b"model " * 10_000,
    ],
    ids=["envelope", "string", "detail", "text"],
)
def test_the_texts_of_an_error_are_cut_when_they_are_parsed(body):
    error = parse_error_body(body)

    assert 4000 < len(error.message) <= 8000
    assert max(len(error.code), len(error.kind)) <= 8000
    assert fault_for(400, body).code == "invalid_prompt"


@pytest.mark.parametrize("status", [302, 400, 401, 403, 404, 413, 418, 422, 429, 500, 503])
def test_no_secret_and_no_address_reaches_the_caller(status):
    message = "sk-secret at http://10.0.0.7:8000/v1 and 10.0.0.7"
    fault = fault_for(status, f'{{"error":{{"message":"{message}","code":"{message}"}}}}'.encode())

    assert not any(word in f"{fault.message} {fault.code}" for word in ("sk-", "10.0.0.7"))


@pytest.mark.parametrize(
    "status, message, is_quoted",
    [
        (400, "Tools need --enable-auto-tool-choice.", True),
        (400, "This model's maximum context length is 9 tokens.", True),
        (400, "The prompt was filtered: content_filter", True),
        (413, "At most 5 images.", True),
        (422, "Conversation roles must alternate.", True),
        (404, "The model `x` does not exist.", True),
        (404, "No route.", False),
        (401, "Key 17 is unknown.", False),
        (403, "Account 17 has no access.", False),
        (429, "Account 17 sent too many requests.", False),
        (500, "Worker 17 crashed.", False),
        (503, "Worker 17 is busy with another prompt.", False),
    ],
)
def test_the_upstream_message_is_quoted_where_the_caller_is_at_fault(status, message, is_quoted):
    quoted = fault_for(status, f'{{"error":{{"message":"{message}"}}}}'.encode()).message

    assert quoted.endswith(f"Upstream message: {message}") == is_quoted
    assert (message in quoted) == is_quoted


@pytest.mark.parametrize(
    "message, exceeds",
    [
        ("max_tokens is too large: 64000. This model supports at most 16384 completion tokens.", True),
        ("Invalid max_tokens value, the valid range of max_tokens is [1, 8192]", True),
        ("`max_completion_tokens` must be less than or equal to `8192`", True),
        ("'max_tokens' is not supported with this model.", False),
        ("temperature is too large", False),
    ],
)
def test_which_errors_are_about_the_limit_of_the_output(message, exceeds):
    fault = fault_for(400, json.dumps({"error": {"message": message}}).encode())

    assert fault.exceeds_output_limit == exceeds


def test_the_validation_errors_of_a_422_are_quoted():
    body = (
        b'{"detail":[{"loc":["body","top_p"],"msg":"Input should be at most 1"},{"loc":["body"],"msg":7},{"msg":"x"}]}'
    )

    assert fault_for(422, body).message.endswith("Upstream message: body.top_p: Input should be at most 1; body; x")


def test_an_error_page_in_html_is_not_quoted():
    assert "nginx" not in fault_for(400, b"\n<html><title>400 Bad Request</title>nginx</html>").message
    assert fault_for(400, b"unknown field 'seed'").message.endswith("Upstream message: unknown field 'seed'")


@pytest.mark.parametrize(
    "message, named",
    [
        ("The encrypted content for item cmp_0aF9 could not be verified. Reason: …", "for item cmp_0aF9 could"),
        ("Encrypted content item_id did not match the target item id 'rs_12'.", "for item rs_12 could"),
        ("The encrypted content gAAAAAB at 10.0.0.7 is not valid.", "for an item could"),
        ("The encrypted content for item sk-secret is not valid.", "for an item could"),
    ],
)
def test_invalid_encrypted_content_names_the_item_if_the_upstream_does(message, named):
    error = UpstreamError(code="invalid_encrypted_content", kind="invalid_request_error", message=message)
    faults = (
        fault_from_response(400, {}, error, model="mine", redact=REDACT),
        fault_from_stream_error(error, model="mine", redact=REDACT),
    )

    assert {(fault.code, fault.status, fault.retryable) for fault in faults} == {
        ("invalid_encrypted_content", 400, False)
    }
    for fault in faults:
        assert named in fault.message
        assert not any(word in fault.message for word in ("gAAAA", "10.0.0.7", "sk-"))


def test_x_should_retry_false_is_not_retryable():
    assert not fault_for(503, headers={"x-should-retry": "false"}).retryable
    assert fault_for(503, headers={"x-should-retry": "true"}).retryable


@pytest.mark.parametrize(
    "headers, seconds",
    [
        ({}, None),
        ({"retry-after": "7"}, 7),
        ({"retry-after": "0.2"}, 1),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 2),
        ({"retry-after": "Mon, 16 Nov 2026 00:00:30 GMT"}, 30),
        ({"retry-after": "Mon, 16 Nov 2020 00:00:30 GMT"}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "9" * 400}, None),
    ],
)
def test_parse_retry_after(headers, seconds):
    assert parse_retry_after(headers, now=datetime(2026, 11, 16, tzinfo=UTC)) == seconds


def test_faults_carry_retry_after():
    assert fault_for(429, headers={"retry-after": "12"}).retry_after == 12
    assert fault_for(503, headers={"retry-after": "3"}).retry_after == 3


@pytest.mark.parametrize(
    "error, code, status",
    [
        ({"error": {"code": 429, "message": "slow down"}}, "rate_limit_exceeded", 429),
        ({"error": {"type": "rate_limit_error"}}, "rate_limit_exceeded", 429),
        ({"type": "error", "code": "context_length_exceeded", "message": ""}, "context_length_exceeded", 400),
        ({"error": {"type": "invalid_request_error", "message": "?"}}, "invalid_prompt", 400),
        ({"error": "out of memory at 10.0.0.7"}, "server_error", 502),
        ({"code": "invalid_encrypted_content", "message": "at 10.0.0.7"}, "invalid_encrypted_content", 400),
        ({"error": {"message": "x", "code": 503}}, "server_error", 503),
        ({"error": {"code": True}}, "server_error", 502),
        (["error"], "server_error", 502),
        ({"code": "insufficient_quota", "message": "at 10.0.0.7"}, "insufficient_quota", 429),
        ({"type": "insufficient_quota", "message": "at 10.0.0.7"}, "insufficient_quota", 429),
        ({"code": "invalid_prompt", "message": "at 10.0.0.7"}, "invalid_prompt", 400),
        ({"code": "bio_policy"}, "invalid_prompt", 400),
        ({"code": "invalid_image_url"}, "invalid_prompt", 400),
        ({"code": "image_file_not_found"}, "invalid_prompt", 400),
        ({"code": "model_not_found"}, "model_not_found", 400),
        ({"code": "invalid_api_key", "type": "invalid_request_error"}, "server_error", 502),
        ({"code": "server_is_overloaded"}, "server_error", 503),
        ({"code": "slow_down"}, "server_error", 503),
        ({"code": "server_error", "message": "An error with the image at 10.0.0.7"}, "server_error", 502),
    ],
)
def test_errors_within_a_stream_are_mapped(error, code, status):
    fault = fault_from_stream_error(parse_error(error), model="mine", redact=REDACT)

    assert (fault.code, fault.status) == (code, status)
    assert "10.0.0.7" not in fault.message


@pytest.mark.parametrize(
    "code, retryable",
    [
        ("rate_limit_exceeded", True),
        ("server_error", True),
        ("server_is_overloaded", True),
        ("insufficient_quota", False),
        ("invalid_prompt", False),
        ("invalid_image", False),
        ("invalid_api_key", False),
        ("context_length_exceeded", False),
    ],
)
def test_which_errors_within_a_stream_are_retryable(code, retryable):
    assert fault_from_stream_error(UpstreamError(code=code), model="mine", redact=REDACT).retryable == retryable


@pytest.mark.parametrize(
    "message, seconds",
    [
        ("Rate limit reached for gpt-6 in organization org-1. Please try again in 11.054s. Visit", 12),
        ("Please try again in 20ms.", 1),
        ("Please try again in 6m0s.", 360),
        ("Please retry after 26 seconds.", 26),
        ("Please retry in 40.5s.", 41),
        ("Please try again in a while.", None),
        ("Please try again in 99999999s.", None),
    ],
)
def test_a_rate_limit_within_a_stream_has_the_wait_that_its_message_states(message, seconds):
    error = UpstreamError(code="rate_limit_exceeded", message=message)

    assert fault_from_stream_error(error, model="mine", redact=REDACT).retry_after == seconds


AZURE = (
    b'{"error":{"code":"429","message":"Requests have exceeded call rate limit of your current tier. To increase it, '
    b'visit https://aka.ms/oai/quotaincrease, or check your billing."}}'
)
GEMINI = (
    b'[{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","message":"You exceeded your current quota, please check '
    b"your plan and billing details. Quota exceeded for quota metric 'Requests' and limit 'Requests per minute'."
    b'"}}]'
)


@pytest.mark.parametrize("body", [AZURE, GEMINI])
@pytest.mark.parametrize("headers, wait", [({}, None), ({"retry-after": "1"}, 1)])
def test_a_rate_limit_whose_message_names_a_quota_is_retryable(body, headers, wait):
    fault = fault_for(429, body, headers)

    assert (fault.code, fault.retryable, fault.retry_after) == ("rate_limit_exceeded", True, wait)


@pytest.mark.parametrize("headers, message", [({"retry-after": "1"}, ""), ({}, "Please try again in 1s.")])
def test_a_quota_for_which_the_upstream_states_a_wait_is_a_rate_limit(headers, message):
    error = UpstreamError(code="insufficient_quota", message=message)
    fault = fault_from_response(429, headers, error, model="mine", redact=REDACT)

    assert (fault.code, fault.retryable, fault.retry_after) == ("rate_limit_exceeded", True, 1)


@pytest.mark.parametrize("named", ["billing_hard_limit_reached", "billing_not_active", "exceeded_current_quota_error"])
def test_codes_and_types_of_an_exhausted_quota(named):
    for error in (UpstreamError(code=named), UpstreamError(kind=named)):
        faults = (
            fault_from_response(429, {}, error, model="mine", redact=REDACT),
            fault_from_stream_error(error, model="mine", redact=REDACT),
        )
        assert [(fault.code, fault.retryable) for fault in faults] == [("insufficient_quota", False)] * 2


def test_exhausted_resources_within_a_stream_are_a_rate_limit():
    error = UpstreamError(code="RESOURCE_EXHAUSTED", message="Quota exceeded for quota metric 'Requests' per minute.")
    fault = fault_from_stream_error(error, model="mine", redact=REDACT)

    assert (fault.status, fault.code, fault.retryable) == (429, "rate_limit_exceeded", True)


def test_an_exhausted_quota_has_its_own_type():
    assert fault_for(429, b'{"error":{"code":"insufficient_quota"}}').kind == "insufficient_quota"


def test_an_error_body_that_is_not_json_is_text():
    assert parse_error_body(b"\xff not json").message == "\ufffd not json"
    assert parse_error_body(b"[" * 100_000).kind == ""


def test_retryable_of_other_faults():
    assert upstream_errors.timed_out().status == 504
    assert all(
        fault.retryable
        for fault in (upstream_errors.timed_out(), upstream_errors.answer_truncated(), upstream_errors.unreachable())
    )
    assert not upstream_errors.misconfigured("A key is missing.").retryable
    assert UpstreamError(code="A", kind="B", message="C").text == "a b c"
