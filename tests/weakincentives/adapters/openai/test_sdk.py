from __future__ import annotations

import gc
import json
import subprocess
import sys
import textwrap

import pytest
from fake_responses_api import FakeResponse, error, message, response, responses_api
from openai import OpenAI

from weakincentives.adapters.openai import OpenAIClientConfig
from weakincentives.adapters.openai.sdk import SdkClient, request_timeout, translate_errors
from weakincentives.adapters.openai.wire import MalformedResponse
from weakincentives.errors import MissingExtraError, ProviderFault

BODY = b'{"model":"m","input":"hi"}'


def transport(url: str, **options) -> SdkClient:
    return SdkClient(None, OpenAIClientConfig(base_url=url, api_key="sk-1", **options))


def test_send_posts_bytes_and_returns_json():
    with responses_api(response(message("Hello."))) as api:
        answer = transport(api.url, organization="org-1", default_headers={"x-extra": "1"}).send(BODY, timeout=None)

    assert answer.body["output"][0]["content"][0]["text"] == "Hello."
    (request,) = api.requests
    assert request.raw == BODY
    assert request.path == "/v1/responses"
    assert request.headers["authorization"] == "Bearer sk-1"
    assert request.headers["content-type"] == "application/json"
    assert (request.headers["openai-organization"], request.headers["x-extra"]) == ("org-1", "1")


def test_given_client_is_used_without_its_retries():
    with responses_api(error(500, "broken"), response()) as api, OpenAI(base_url=api.url, api_key="sk-2") as client:
        sdk = SdkClient(client, None)
        with pytest.raises(ProviderFault):
            sdk.send(BODY, timeout=None)
        sdk.send(BODY, timeout=None)

    assert client.max_retries == 2
    assert [request.headers["authorization"] for request in api.requests] == ["Bearer sk-2"] * 2


def test_connections_close_when_the_client_is_garbage_collected():
    with responses_api(response()) as api:
        sdk = transport(api.url)
        sdk.send(BODY, timeout=None)
        assert sdk.client.containers  # creates a reference cycle
        http = sdk.client._client  # the SDK has no public access to it
        del sdk
        gc.collect()

    assert http.is_closed


def test_closed_client_is_created_again_on_use():
    with responses_api(response(), response()) as api:
        sdk = transport(api.url)
        sdk.close()  # without a client
        first = sdk.client
        sdk.send(BODY, timeout=None)
        sdk.close()
        assert first.is_closed()
        sdk.send(BODY, timeout=None)
        sdk.close()

    assert len(api.requests) == 2


def test_given_client_is_not_closed():
    with OpenAI(base_url="http://127.0.0.1:1", api_key="none") as client:
        sdk = SdkClient(client, None)
        _ = sdk.client
        sdk.close()
        assert not client.is_closed()


@pytest.mark.parametrize(
    "answer, status, wait, again, expected",
    [
        (error(429, "slow down", retry_after="7"), 429, 7, None, "429: slow down"),
        (error(429, "slow down", retry_after_ms="1500"), 429, 1.5, None, "429: slow down"),
        (error(500, "broken", x_should_retry="false"), 500, None, False, "500: broken"),
        (error(404, "later", x_should_retry="true"), 404, None, True, "404: later"),
        (error(429, "no money", code="insufficient_quota"), 429, None, False, r"429 \(insufficient_quota\): no money"),
        (error(400, "wrong", code="invalid_type"), 400, None, None, r"400 \(invalid_type\): wrong"),
        (FakeResponse(b"<html>bad gateway</html>", 502), 502, None, None, "502: "),
    ],
)
def test_http_error_becomes_fault_with_status_and_headers(answer, status, wait, again, expected):
    with responses_api(answer) as api, pytest.raises(ProviderFault, match=expected) as caught:
        transport(api.url).send(BODY, timeout=None)

    fault = caught.value
    assert (fault.status, fault.retry_after, fault.should_retry) == (status, wait, again)
    if isinstance(answer.body, dict):
        assert fault.payload == answer.body["error"]


def test_connection_error_is_a_fault_without_status():
    with (
        responses_api(FakeResponse(disconnect=True)) as api,
        pytest.raises(ProviderFault, match="no connection") as caught,
    ):
        transport(api.url).send(BODY, timeout=None)

    assert caught.value.status is None
    with pytest.raises(ProviderFault, match="no connection"):  # the server is closed
        transport(api.url).send(BODY, timeout=None)


def test_request_times_out_after_the_given_seconds():
    with (
        responses_api(FakeResponse(response(), delay=5)) as api,
        pytest.raises(ProviderFault, match="timed out") as caught,
    ):
        transport(api.url).send(BODY, timeout=0.2)

    assert caught.value.status is None


@pytest.mark.parametrize("timeout, wanted", [(600, 5), (3, 3), (None, 5)])
def test_request_timeout_is_the_smaller_one(timeout, wanted):
    with OpenAI(base_url="http://127.0.0.1:1", api_key="none", timeout=timeout) as client:
        assert request_timeout(client, 5) == wanted


def test_request_timeout_reads_the_client_default():
    with OpenAI(base_url="http://127.0.0.1:1", api_key="none") as client:
        assert request_timeout(client, 5) == 5
        assert request_timeout(client, 5000) == 600


@pytest.mark.parametrize(
    "body, expected", [(b"<html>", "not JSON"), (b"[1]", "not an object"), (b"", "not JSON"), (b"7", "not an obj")]
)
def test_unexpected_body_is_malformed(body, expected):
    with responses_api(FakeResponse(body)) as api, pytest.raises(MalformedResponse, match=expected):
        transport(api.url).send(BODY, timeout=None)


def test_lone_surrogates_in_a_response_are_decoded():
    with responses_api(FakeResponse(b'{"output": ["\\ud800"], "big": 1e400}')) as api:
        answer = transport(api.url).send(BODY, timeout=None)

    assert answer.body["output"] == ["\ud800"]


def test_other_sdk_errors_are_faults_without_retry():
    with pytest.raises(ProviderFault) as caught, translate_errors():
        OpenAI(api_key=None, base_url="http://127.0.0.1:1")  # no key in the environment

    assert caught.value.should_retry is False


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


WITHOUT = """
    import sys
    sys.modules["openai"] = None  # as if not installed
    from weakincentives.adapters.openai import OpenAIAdapter
    adapter = OpenAIAdapter(model="m")
    try:
        adapter.client
    except ImportError as error:
        print(type(error).__name__, error)
"""


def test_missing_sdk_error_names_the_extra():
    output = subprocess.check_output([sys.executable, "-c", textwrap.dedent(WITHOUT)], text=True)

    assert issubclass(MissingExtraError, ImportError)
    assert output.strip() == (
        "MissingExtraError the OpenAI adapter needs OpenAI's SDK: pip install 'weakincentives[openai]'"
    )


def test_sdk_is_imported_on_first_use():
    code = """
        import json, sys
        from weakincentives.adapters.openai import OpenAIAdapter, OpenAIClientConfig
        adapter = OpenAIAdapter(model="m", client_config=OpenAIClientConfig(api_key="k"))
        before = "openai" in sys.modules
        adapter.client
        print(json.dumps([before, "openai" in sys.modules]))
    """
    output = subprocess.check_output([sys.executable, "-c", textwrap.dedent(code)], text=True)

    assert json.loads(output) == [False, True]
