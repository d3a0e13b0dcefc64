"""One run and no more: what it leaves, what of that is left out, and whose it is."""

from __future__ import annotations

import base64

from antwort.sandbox.files.tree import MOST_LISTED
from antwort.sandbox.server.execute import MAX_PRODUCED_BYTES

PREPARE = "import os\nos.chdir(os.environ['OUTPUT_DIR'])\n"


def test_files_come_in_order_with_those_below(server):
    code = f"{PREPARE}os.makedirs('b/c')\nfor n in ('z', 'b/c/d', 'a'): open(n, 'w').write(n)"
    produced = server.client.execute(code)["files_produced"]
    assert [(name, base64.b64decode(data).decode()) for name, data in produced.items()] == [
        ("a", "a"),
        ("b/c/d", "b/c/d"),
        ("z", "z"),
    ]


def test_more_files_than_are_sent_are_told(server):
    code = f"{PREPARE}for i in range({MOST_LISTED + 1}): open(f'{{i:05}}', 'w').close()"
    seen = server.client.execute(code, timeout_seconds=60)
    assert len(seen["files_produced"]) == MOST_LISTED
    assert "09999" in seen["files_produced"]
    assert "10000" not in seen["files_produced"]
    assert f"left out of files_produced: everything after the first {MOST_LISTED}" in seen["stderr"]
    assert seen["status"] == "success"


def test_as_many_files_as_are_sent_leave_nothing_to_tell(server):
    code = f"{PREPARE}for i in range({MOST_LISTED}): open(f'{{i:05}}', 'w').close()"
    seen = server.client.execute(code, timeout_seconds=60)
    assert (len(seen["files_produced"]), seen["stderr"]) == (MOST_LISTED, "")


def test_files_too_large_are_named_but_for_a_flood_of_them(server):
    size = MAX_PRODUCED_BYTES + 1
    sparse = f"for i in range(15): os.truncate(os.open(f'sparse{{i:02}}', os.O_CREAT | os.O_RDWR), {size})"
    code = f"{PREPARE}open('kept', 'w').write('x')\n{sparse}"
    seen = server.client.execute(code)
    assert list(seen["files_produced"]) == ["kept"]
    (note,) = seen["stderr"].splitlines()
    assert "output/sparse00, " in note
    assert "sparse09 and 5 more" in note
    assert "sparse10" not in note


def test_tenants_that_say_who_they_are_share_no_zygote(server):
    """Forks of one zygote have the same hash seed, so a difference shows two zygotes."""

    def seed(**fields: str) -> str:
        return server.client.execute("print(hash('seed'))", **fields)["stdout"]

    assert seed(tenant="red") == seed(tenant="red") != seed(tenant="blue")
    assert seed() == seed() != seed(tenant="red")
    session = server.client.session(tenant="red")
    assert server.client.run(session, "print(hash('seed'))")["stdout"] == seed(tenant="red")
    server.client.destroy(session)
    for wrong in (7, ["x"], "x" * 201):
        assert server.client.post("/execute", {"code": "1", "tenant": wrong}).status == 400
