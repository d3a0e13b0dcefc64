"""API keys of `antwort keys create` without a configured file: the server process finds them."""

from __future__ import annotations

import pytest
from fixtures_server import create_key, run_server
from waiting import wait_until

DEFAULT = ".antwort/keys.json"


def status_of(server, key: str | None = None) -> int:
    with server.http(headers={} if key is None else {"authorization": f"Bearer {key}"}) as http:
        return http.get("/v1/models").status_code


def test_the_server_uses_the_keys_that_keys_create_wrote(tmp_path):
    key = create_key(tmp_path, "me", file=None)
    with run_server(tmp_path) as server:
        assert f"auth       1 key in {DEFAULT}; every request needs one" in server.banner
        assert (status_of(server), status_of(server, key), status_of(server, f"{key[:-1]}?")) == (401, 200, 401)


def test_the_default_file_is_beside_the_configured_data(tmp_path):
    config = {"storage": {"url": "sqlite:///data/antwort.db", "blobs": "data/blobs"}}
    key = create_key(tmp_path, "me", file="data/keys.json")
    with run_server(tmp_path, config) as server:
        assert "auth       1 key in data/keys.json" in server.banner
        assert (status_of(server), status_of(server, key)) == (401, 200)


def test_keys_of_another_file_are_used_only_if_they_are_configured(tmp_path):
    create_key(tmp_path, "me", file="other.json")
    with run_server(tmp_path) as server:
        assert f"auth       off: no API keys in {DEFAULT}" in server.banner
        assert status_of(server) == 200


def test_a_key_file_that_appears_turns_authentication_on(tmp_path):
    with run_server(tmp_path) as server:
        assert "`antwort keys create` turns it on" in server.banner
        assert status_of(server) == 200
        key = create_key(tmp_path, "me", file=None)
        wait_until(lambda: status_of(server) == 401)
        assert status_of(server, key) == 200
        (tmp_path / DEFAULT).unlink()
        wait_until(lambda: "key_reload_failed" in server.read_log())
        assert (status_of(server), status_of(server, key)) == (401, 200)
    assert "authentication_enabled" in server.read_log()


@pytest.mark.parametrize("mode", [0o644, 0o600])
def test_a_key_file_that_appears_and_is_not_usable_refuses_every_request(tmp_path, mode):
    with run_server(tmp_path) as server:
        (tmp_path / DEFAULT).touch(mode)
        (tmp_path / DEFAULT).chmod(mode)
        wait_until(lambda: status_of(server) == 401)
        key = create_key(tmp_path, "me")
        (tmp_path / "keys.json").replace(tmp_path / DEFAULT)
        wait_until(lambda: status_of(server, key) == 200)
        assert status_of(server) == 401
