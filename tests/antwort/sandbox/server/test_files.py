"""A session's files are listed page by page, and a page says whether there is another."""

from __future__ import annotations

import io
import tarfile
from urllib.parse import quote

import pytest

from antwort.sandbox.files.tree import MAX_LISTED


@pytest.fixture
def session(server):
    made = server.client.session()
    yield made
    server.client.destroy(made)


def listed(server, session: str, **query: object) -> tuple[list[str], bool]:
    words = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in query.items())
    answer = server.client.call("GET", f"/sessions/{session}/files?{words}").json
    return [file["path"] for file in answer["files"]], answer["has_more"]


def test_all_files_can_be_had_however_many(server, session):
    many = MAX_LISTED + 1_234
    server.client.run(session, f"import os\nos.mkdir('d')\nfor i in range({many}): open(f'd/{{i:05}}', 'w').close()")
    first, more = listed(server, session)
    assert (len(first), first[0], more) == (MAX_LISTED, "d", True)
    rest, more = listed(server, session, after=first[-1])
    assert (len(first) + len(rest), more) == (many + 1, False)
    assert (rest[0], rest[-1]) == (f"d/{MAX_LISTED - 1:05}", f"d/{many - 1:05}")
    assert listed(server, session, path="d", after="d/00004", limit=2) == (["d/00005", "d/00006"], True)


def test_a_tree_travels_whole_however_many_files_it_has(server, session):
    many = MAX_LISTED + 7
    server.client.run(session, f"for i in range({many}): open(f'{{i:05}}', 'w').close()")
    answer = server.client.call("GET", f"/sessions/{session}/archive")
    with tarfile.open(fileobj=io.BytesIO(answer.body)) as archive:
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
def test_a_page_that_cannot_be_is_refused(server, session, query):
    words = "&".join(f"{name}={quote(str(value))}" for name, value in query.items())
    answer = server.client.call("GET", f"/sessions/{session}/files?{words}")
    assert answer.status == 400, answer
    assert answer.json["error"]
