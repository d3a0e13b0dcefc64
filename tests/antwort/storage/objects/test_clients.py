from __future__ import annotations

from typing import Any

import pytest

from antwort.config import ObjectStoreSettings
from antwort.storage import UnusableStore
from antwort.storage.objects.clients import open_client

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "hunter2"}


def config(url: str, environment: dict[str, str] | None = None, **settings: Any) -> dict[str, Any]:
    client: Any = open_client(url, ObjectStoreSettings(**settings), {**CREDENTIALS, **(environment or {})})
    return client.config


def test_a_bucket_of_amazon_is_in_the_host_name_and_one_with_dots_is_not():
    assert config("s3://bucket/a/b", region="eu-west-1") | {"bucket": "bucket", "region": "eu-west-1"} == config(
        "s3://bucket/a/b", region="eu-west-1"
    )
    assert config("s3://bucket")["virtual_hosted_style_request"] in {True, "true"}
    assert config("s3://my.bucket")["virtual_hosted_style_request"] in {False, "false"}
    assert config("s3://bucket", path_style=True)["virtual_hosted_style_request"] in {False, "false"}


def test_the_region_comes_from_the_settings_or_the_usual_variables():
    assert config("s3://b")["region"] == "us-east-1"
    assert config("s3://b", {"AWS_DEFAULT_REGION": "eu-west-1"})["region"] == "eu-west-1"
    assert config("s3://b", {"AWS_DEFAULT_REGION": "eu-west-1", "AWS_REGION": "eu-west-2"})["region"] == "eu-west-2"
    assert config("s3://b", {"AWS_REGION": "eu-west-2"}, region="eu-west-3")["region"] == "eu-west-3"


def test_an_endpoint_of_the_settings_overrides_that_of_the_environment(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://environment.example")
    environment = {"AWS_ENDPOINT_URL_S3": "https://environment.example"}

    assert (
        config("s3://b", environment, endpoint="https://minio.example/")["endpoint_url_s3"] == "https://minio.example"
    )
    assert config("s3://b", environment)["endpoint_url_s3"] == "https://environment.example"
    hosted = config("s3://b", environment, endpoint="https://minio.example:9000", path_style=False)
    assert hosted["endpoint_url_s3"] == "https://b.minio.example:9000"


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9000", "http://localhost:9000", "http://[::1]:9000"])
def test_http_is_allowed_on_loopback(endpoint):
    assert config("s3://b", endpoint=endpoint)["endpoint_url_s3"] == endpoint


def test_http_to_another_host_needs_a_setting():
    for settings, environment in (
        ({"endpoint": "http://minio.example"}, {}),
        ({}, {"AWS_ENDPOINT_URL": "http://minio.example"}),
    ):
        with pytest.raises(UnusableStore, match="allow_http` to true"):
            config("s3://b", environment, **settings)
        assert config("s3://b", environment, **settings, allow_http=True)


def test_other_clouds_are_opened_without_a_request(monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")
    clients: list[Any] = [
        open_client(f"{scheme}://bucket/prefix", ObjectStoreSettings(), {}) for scheme in ("gs", "az")
    ]
    assert [client.prefix for client in clients] == ["prefix", "prefix"]


def test_a_configuration_that_the_library_refuses_is_an_error_without_its_text(monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(UnusableStore, match="Check the variables that configure its credentials") as error:
        open_client("az://container/prefix", ObjectStoreSettings(), {})
    assert error.value.__suppress_context__
