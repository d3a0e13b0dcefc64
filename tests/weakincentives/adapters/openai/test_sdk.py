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


def test_bytes_go_out_as_they_are_and_json_comes_back():
    with responses_api(response(message("Hello."))) as api:
        answer = transport(api.url, organization="org-1", default_headers={"x-extra": "1"}).send(
            BODY, timeout_seconds=None
        )

    assert answer["output"][0]["content"][0]["text"] == "Hello."
    (request,) = api.requests
    assert request.raw == BODY
    assert request.path == "/v1/responses"
    assert request.headers["authorization"] == "Bearer sk-1"
    assert request.headers["content-type"] == "application/json"
    assert (request.headers["openai-organization"], request.headers["x-extra"]) == ("org-1", "1")


def test_a_client_of_the_callers_is_used_without_its_own_retries():
    with responses_api(error(500, "broken"), response()) as api, OpenAI(base_url=api.url, api_key="sk-2") as client:
        sender = SdkClient(client, None)
        with pytest.raises(ProviderFault):
            sender.send(BODY, timeout_seconds=None)
        sender.send(BODY, timeout_seconds=None)

    assert client.max_retries == 2
    assert [request.headers["authorization"] for request in api.requests] == ["Bearer sk-2"] * 2


def test_connections_go_with_a_client_that_nobody_has_any_more():
    with responses_api(response()) as api:
        sender = transport(api.url)
        sender.send(BODY, timeout_seconds=None)
        assert sender.client.containers  # which refers to the client that it is of
        http = sender.client._client  # the SDK has no other way to see it, and closes it only where nobody does
        del sender
        gc.collect()

    assert http.is_closed


def test_what_is_closed_is_opened_again_when_it_is_needed():
    with responses_api(response(), response()) as api:
        sender = transport(api.url)
        sender.close()  # nothing to do yet
        first = sender.client
        sender.send(BODY, timeout_seconds=None)
        sender.close()
        assert first.is_closed()
        sender.send(BODY, timeout_seconds=None)
        sender.close()

    assert len(api.requests) == 2


def test_a_client_of_the_callers_is_not_closed():
    with OpenAI(base_url="http://127.0.0.1:1", api_key="none") as client:
        sender = SdkClient(client, None)
        _ = sender.client
        sender.close()
        assert not client.is_closed()


@pytest.mark.parametrize(
    "answer, status, wait, again, told",
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
def test_a_refusal_is_a_fault_with_everything_that_the_provider_says(answer, status, wait, again, told):
    with responses_api(answer) as api, pytest.raises(ProviderFault, match=told) as caught:
        transport(api.url).send(BODY, timeout_seconds=None)

    fault = caught.value
    assert (fault.status, fault.retry_after, fault.should_retry) == (status, wait, again)
    if isinstance(answer.body, dict):
        assert fault.payload == answer.body["error"]


def test_a_connection_that_breaks_is_a_fault_without_a_status():
    with (
        responses_api(FakeResponse(disconnect=True)) as api,
        pytest.raises(ProviderFault, match="no connection") as caught,
    ):
        transport(api.url).send(BODY, timeout_seconds=None)

    assert caught.value.status is None
    with pytest.raises(ProviderFault, match="no connection"):  # the server is gone by now
        transport(api.url).send(BODY, timeout_seconds=None)


def test_no_longer_is_waited_than_there_is_time():
    with (
        responses_api(FakeResponse(response(), delay=5)) as api,
        pytest.raises(ProviderFault, match="timed out") as caught,
    ):
        transport(api.url).send(BODY, timeout_seconds=0.2)

    assert caught.value.status is None


@pytest.mark.parametrize("patience, wanted", [(600, 5), (3, 3), (None, 5)])
def test_the_shorter_patience_counts(patience, wanted):
    with OpenAI(base_url="http://127.0.0.1:1", api_key="none", timeout=patience) as client:
        assert request_timeout(client, 5) == wanted


def test_the_clients_usual_patience_is_known():
    with OpenAI(base_url="http://127.0.0.1:1", api_key="none") as client:
        assert request_timeout(client, 5) == 5
        assert request_timeout(client, 5000) == 600


@pytest.mark.parametrize(
    "body, told", [(b"<html>", "not JSON"), (b"[1]", "not an object"), (b"", "not JSON"), (b"7", "not an obj")]
)
def test_what_is_no_answer_of_the_api_is_malformed(body, told):
    with responses_api(FakeResponse(body)) as api, pytest.raises(MalformedResponse, match=told):
        transport(api.url).send(BODY, timeout_seconds=None)


def test_text_that_is_no_unicode_is_read_all_the_same():
    with responses_api(FakeResponse(b'{"output": ["\\ud800"], "big": 1e400}')) as api:
        answer = transport(api.url).send(BODY, timeout_seconds=None)

    assert answer["output"] == ["\ud800"]


def test_any_other_error_of_the_sdk_is_a_fault_that_no_retry_cures():
    with pytest.raises(ProviderFault) as caught, translate_errors():
        OpenAI(api_key=None, base_url="http://127.0.0.1:1")  # nothing in the environment either

    assert caught.value.should_retry is False


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


WITHOUT = """
    import sys
    sys.modules["openai"] = None  # as where it is not installed
    from weakincentives.adapters.openai import OpenAIAdapter
    adapter = OpenAIAdapter(model="m")
    try:
        adapter.client
    except ImportError as error:
        print(type(error).__name__, error)
"""


def test_without_the_sdk_the_error_names_the_extra():
    said = subprocess.check_output([sys.executable, "-c", textwrap.dedent(WITHOUT)], text=True)

    assert issubclass(MissingExtraError, ImportError)
    assert said.strip() == (
        "MissingExtraError the OpenAI adapter needs OpenAI's SDK: pip install 'weakincentives[openai]'"
    )


def test_the_sdk_is_loaded_on_first_use():
    code = """
        import json, sys
        from weakincentives.adapters.openai import OpenAIAdapter, OpenAIClientConfig
        adapter = OpenAIAdapter(model="m", client_config=OpenAIClientConfig(api_key="k"))
        before = "openai" in sys.modules
        adapter.client
        print(json.dumps([before, "openai" in sys.modules]))
    """
    said = subprocess.check_output([sys.executable, "-c", textwrap.dedent(code)], text=True)

    assert json.loads(said) == [False, True]
