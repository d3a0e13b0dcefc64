"""Where the server listens: what is opened, what is refused, and that nothing is left."""

from __future__ import annotations

import os
import socket
import stat

import pytest

from antwort.sandbox.errors import CannotStart, Refused
from antwort.sandbox.server.address import Address
from antwort.sandbox.server.settings import SandboxSettings


def test_port_0_is_one_that_is_free_and_is_told():
    with Address.open(SandboxSettings(port=0)) as address:
        (listener,) = address.sockets
        port = listener.getsockname()[1]
        assert str(address) == f"http://127.0.0.1:{port}"
        socket.create_connection(("127.0.0.1", port)).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_name_with_several_addresses_has_one_port():
    with Address.open(SandboxSettings(host="localhost", port=0)) as address:
        assert len({listener.getsockname()[1] for listener in address.sockets}) == 1


def test_an_address_of_version_6_is_written_in_brackets():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no loopback of version 6")
    with Address.open(SandboxSettings(host="::1", port=0)) as address:
        assert str(address).startswith("http://[::1]:")


def test_a_port_that_is_taken_is_told():
    with (
        Address.open(SandboxSettings(port=0)) as address,
        pytest.raises(CannotStart, match=r"cannot listen on 127\.0\.0\.1, port \d+: .*in use"),
        Address.open(SandboxSettings(port=address.sockets[0].getsockname()[1])),
    ):
        pass


@pytest.fixture
def place(tmp_path):
    tmp_path.chmod(0o700)
    return tmp_path


def test_a_unix_socket_is_its_owners_alone_and_gone_afterwards(place):
    path = place / "new" / "socket"
    with Address.open(SandboxSettings(uds=str(path))) as address:
        assert str(address) == f"unix:{path}"
        assert [stat.S_IMODE(p.stat().st_mode) for p in (path.parent, path)] == [0o700, 0o600]
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(path))
    assert not path.exists()


@pytest.mark.parametrize("mode", [0o755, 0o701, 0o710, 0o777])
def test_without_a_token_its_directory_must_be_private(place, mode):
    place.chmod(mode)
    with pytest.raises(Refused, match="chmod 700"), Address.open(SandboxSettings(uds=str(place / "socket"))):
        pass
    assert list(place.iterdir()) == []
    with Address.open(SandboxSettings(uds=str(place / "socket"), token="t")):
        assert stat.S_IMODE((place / "socket").stat().st_mode) == 0o666


def test_the_directory_of_another_is_not_private(place):
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    os.chown(place, 54321, 54321)
    with pytest.raises(Refused, match="open to other users"), Address.open(SandboxSettings(uds=str(place / "socket"))):
        pass


def test_what_a_killed_server_left_is_taken_over(place):
    path = place / "socket"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    with Address.open(SandboxSettings(uds=str(path))):
        assert path.exists()
    assert not path.exists()


def test_a_socket_in_use_is_not(place):
    path = str(place / "socket")
    with Address.open(SandboxSettings(uds=path)) as first:
        for _ in range(3):
            with pytest.raises(Refused, match="another process listens"), Address.open(SandboxSettings(uds=path)):
                pass
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(path)
        assert first.sockets[0].fileno() >= 0


def test_nor_is_one_whose_server_has_no_time(place):
    path = str(place / "socket")
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(path)
        busy.listen(0)
        waiting.connect(path)  # and now the queue is full
        with pytest.raises(Refused, match="another process listens"), Address.open(SandboxSettings(uds=path)):
            pass


def test_what_is_no_socket_is_never_removed(place):
    (place / "notes").write_text("mine")
    with pytest.raises(Refused, match="not a socket"), Address.open(SandboxSettings(uds=str(place / "notes"))):
        pass
    assert (place / "notes").read_text() == "mine"


def test_whoever_took_the_place_meanwhile_keeps_it(place):
    path = place / "socket"
    with Address.open(SandboxSettings(uds=str(path))):
        path.unlink()
        path.write_text("another's")
    assert path.read_text() == "another's"


def test_a_path_that_is_too_long_says_so(place):
    with pytest.raises(CannotStart, match="too long"), Address.open(SandboxSettings(uds=str(place / ("x" * 200)))):
        pass
