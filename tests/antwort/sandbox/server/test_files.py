"""File routes: pagination of the listing, and archives."""

from __future__ import annotations

import io
import tarfile
from urllib.parse import quote

import pytest

from antwort.sandbox.files.tree import MAX_LISTED


@pytest.fixture
def session(server):
    created = server.client.session()
    yield created
    server.client.destroy(created)


def listed(server, session: str, **query: object) -> tuple[list[str], bool]:
    parameters = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in query.items())
    response = server.client.call("GET", f"/sessions/{session}/files?{parameters}").json
    return [file["path"] for file in response["files"]], response["has_more"]


def test_a_long_listing_has_pages(server, session):
    many = MAX_LISTED + 1_234
    server.client.run(session, f"import os\nos.mkdir('d')\nfor i in range({many}): open(f'd/{{i:05}}', 'w').close()")
    first, more = listed(server, session)
    assert (len(first), first[0], more) == (MAX_LISTED, "d", True)
    rest, more = listed(server, session, after=first[-1])
    assert (len(first) + len(rest), more) == (many + 1, False)
    assert (rest[0], rest[-1]) == (f"d/{MAX_LISTED - 1:05}", f"d/{many - 1:05}")
    assert listed(server, session, path="d", after="d/00004", limit=2) == (["d/00005", "d/00006"], True)


def test_an_archive_has_all_files(server, session):
    many = MAX_LISTED + 7
    server.client.run(session, f"for i in range({many}): open(f'{{i:05}}', 'w').close()")
    response = server.client.call("GET", f"/sessions/{session}/archive")
    with tarfile.open(fileobj=io.BytesIO(response.body)) as archive:
        assert len(archive.getnames()) == many


@pytest.mark.parametrize(
    "query",
    [
        *({"limit": wrong} for wrong in (0, -1, MAX_LISTED + 1, "x", "²", "")),
        *({"after": wrong} for wrong in ("../x", "/x")),
        {"path": "a", "after": "b"},
        {"path": ".."},
    ],
    ids=str,
)
def test_invalid_listing_parameters_are_rejected(server, session, query):
    parameters = "&".join(f"{name}={quote(str(value))}" for name, value in query.items())
    response = server.client.call("GET", f"/sessions/{session}/files?{parameters}")
    assert response.status == 400, response
    assert response.json["error"]
