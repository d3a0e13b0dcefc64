from __future__ import annotations

import pytest

from antwort.api.errors import ApiError
from antwort.http.wires.websocket.registry import OpenWebSockets


def test_each_tenant_has_a_limit_and_leaves_nothing():
    opened = OpenWebSockets(1)
    with opened.admit("a"), opened.admit("b"):
        assert opened.count == 2
        with pytest.raises(ApiError) as refused, opened.admit("a"):
            pass
        assert (refused.value.status, refused.value.retry_after) == (429, 1)
        assert opened.count == 2
    assert opened == OpenWebSockets(1)


def test_open_connections_are_notified_of_the_stop():
    opened, notices = OpenWebSockets(1), []
    with opened.notify(lambda: notices.append(1)):
        opened.stop()
    opened.stop()
    assert (opened.stopping, notices) == (True, [1])
