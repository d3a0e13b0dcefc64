"""`POST /execute`: produced files and their limits, and one zygote per tenant."""

from __future__ import annotations

import base64

from antwort.sandbox.files.tree import MAX_LISTED
from antwort.sandbox.server.execute import MAX_PRODUCED_BYTES

PREPARE = "import os\nos.chdir(os.environ['OUTPUT_DIR'])\n"


def test_produced_files_are_sorted_and_include_subdirectories(server):
    code = f"{PREPARE}os.makedirs('b/c')\nfor n in ('z', 'b/c/d', 'a'): open(n, 'w').write(n)"
    produced = server.client.execute(code)["files_produced"]
    assert [(name, base64.b64decode(data).decode()) for name, data in produced.items()] == [
        ("a", "a"),
        ("b/c/d", "b/c/d"),
        ("z", "z"),
    ]


def test_files_above_the_listing_limit_are_omitted_with_a_note(server):
    code = f"{PREPARE}for i in range({MAX_LISTED + 1}): open(f'{{i:05}}', 'w').close()"
    seen = server.client.execute(code, timeout_seconds=60)
    assert len(seen["files_produced"]) == MAX_LISTED
    assert "09999" in seen["files_produced"]
    assert "10000" not in seen["files_produced"]
    assert f"left out of files_produced: everything after the first {MAX_LISTED}" in seen["stderr"]
    assert seen["status"] == "success"


def test_files_up_to_the_listing_limit_need_no_note(server):
    code = f"{PREPARE}for i in range({MAX_LISTED}): open(f'{{i:05}}', 'w').close()"
    seen = server.client.execute(code, timeout_seconds=60)
    assert (len(seen["files_produced"]), seen["stderr"]) == (MAX_LISTED, "")


def test_files_above_the_size_limit_are_named_up_to_a_number(server):
    size = MAX_PRODUCED_BYTES + 1
    sparse = f"for i in range(15): os.truncate(os.open(f'sparse{{i:02}}', os.O_CREAT | os.O_RDWR), {size})"
    code = f"{PREPARE}open('kept', 'w').write('x')\n{sparse}"
    seen = server.client.execute(code)
    assert list(seen["files_produced"]) == ["kept"]
    (note,) = seen["stderr"].splitlines()
    assert "output/sparse00, " in note
    assert "sparse09 and 5 more" in note
    assert "sparse10" not in note


def test_tenants_do_not_share_a_zygote(server):
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
