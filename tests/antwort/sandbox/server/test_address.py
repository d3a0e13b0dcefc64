"""Listening sockets: TCP and Unix sockets, permissions, stale socket files, clean-up."""

from __future__ import annotations

import os
import socket
import stat

import pytest

from antwort.sandbox.errors import CannotStart, Refused
from antwort.sandbox.server.address import Address
from antwort.sandbox.server.settings import SandboxSettings


def test_port_0_selects_a_free_port_and_the_url_names_it():
    with Address.open(SandboxSettings(port=0)) as address:
        (listener,) = address.sockets
        port = listener.getsockname()[1]
        assert str(address) == f"http://127.0.0.1:{port}"
        socket.create_connection(("127.0.0.1", port)).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_all_addresses_of_a_name_have_the_same_port():
    with Address.open(SandboxSettings(host="localhost", port=0)) as address:
        assert len({listener.getsockname()[1] for listener in address.sockets}) == 1


def test_an_ipv6_address_is_in_brackets():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    with Address.open(SandboxSettings(host="::1", port=0)) as address:
        assert str(address).startswith("http://[::1]:")


def test_a_port_in_use_is_an_error():
    with (
        Address.open(SandboxSettings(port=0)) as address,
        pytest.raises(CannotStart, match=r"cannot listen on 127\.0\.0\.1, port \d+: .*in use"),
        Address.open(SandboxSettings(port=address.sockets[0].getsockname()[1])),
    ):
        pass


@pytest.fixture
def directory(tmp_path):
    tmp_path.chmod(0o700)
    return tmp_path


def test_a_unix_socket_is_private_and_removed_afterwards(directory):
    path = directory / "new" / "socket"
    with Address.open(SandboxSettings(uds=str(path))) as address:
        assert str(address) == f"unix:{path}"
        assert [stat.S_IMODE(p.stat().st_mode) for p in (path.parent, path)] == [0o700, 0o600]
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    assert not path.exists()


@pytest.mark.parametrize("mode", [0o755, 0o701, 0o710, 0o777])
def test_without_a_token_the_directory_of_the_socket_must_be_private(directory, mode):
    directory.chmod(mode)
    with pytest.raises(Refused, match="chmod 700"), Address.open(SandboxSettings(uds=str(directory / "socket"))):
        pass
    assert list(directory.iterdir()) == []
    with Address.open(SandboxSettings(uds=str(directory / "socket"), token="t")):
        assert stat.S_IMODE((directory / "socket").stat().st_mode) == 0o666


def test_a_directory_of_another_user_is_not_private(directory):
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    os.chown(directory, 54321, 54321)
    with (
        pytest.raises(Refused, match="open to other users"),
        Address.open(SandboxSettings(uds=str(directory / "socket"))),
    ):
        pass


def test_the_socket_file_of_a_killed_server_is_replaced(directory):
    path = directory / "socket"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    with Address.open(SandboxSettings(uds=str(path))):
        assert path.exists()
    assert not path.exists()


def test_a_socket_in_use_is_not_replaced(directory):
    path = str(directory / "socket")
    with Address.open(SandboxSettings(uds=path)) as first:
        for _ in range(3):
            with pytest.raises(Refused, match="another process listens"), Address.open(SandboxSettings(uds=path)):
                pass
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
        assert first.sockets[0].fileno() >= 0


def test_a_socket_with_a_full_backlog_is_not_replaced(directory):
    path = str(directory / "socket")
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(path)
        busy.listen(0)
        waiting.connect(path)  # the backlog is full now
        with pytest.raises(Refused, match="another process listens"), Address.open(SandboxSettings(uds=path)):
            pass


def test_a_file_that_is_not_a_socket_is_not_removed(directory):
    (directory / "notes").write_text("mine")
    with pytest.raises(Refused, match="not a socket"), Address.open(SandboxSettings(uds=str(directory / "notes"))):
        pass
    assert (directory / "notes").read_text() == "mine"


def test_the_socket_file_of_another_server_is_not_removed_at_the_end(directory):
    path = directory / "socket"
    with Address.open(SandboxSettings(uds=str(path))):
        path.unlink()
        path.write_text("another's")
    assert path.read_text() == "another's"


def test_a_path_that_is_too_long_is_an_error(directory):
    with pytest.raises(CannotStart, match="too long"), Address.open(SandboxSettings(uds=str(directory / ("x" * 200)))):
        pass
