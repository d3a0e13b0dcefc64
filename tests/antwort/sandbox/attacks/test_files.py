"""Attacks on the way files go in and come out."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import time
from urllib.parse import quote

import pytest

BAD_NAMES = [
    *("../x", "../../etc/passwd", "a/../../x", "a\\b", "a\nb", "a\x7fb", "x" * 256, "..", "a/./b", "\u202eevil"),
    *("/etc/passwd", "//x", "a//b", "a\0b", "\0", "a\\..\\b", "\u0085", "\u2028", "d/" * 70 + "f", "ä" * 128, "C:\\x"),
]


def names_in_archive(arena) -> list[str]:
    packed = arena.client.call("GET", f"/sessions/{arena.session}/archive").body
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        return sorted(archive.getnames())


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names_going_in(arena, name):
    """By every way there is: alone, with a run or a session, as the target of a move, in an archive, as its place."""
    base = f"/sessions/{arena.session}"
    answers = [
        arena.client.call("PUT", f"{base}/files/{quote(name, safe='')}", b"x"),
        arena.client.call("PUT", f"{base}/archive?path={quote(name, safe='')}", packed("good")),
        arena.client.post("/execute", {"code": "1", "files": {name: ""}}),
        arena.client.post("/sessions", {"files": {name: ""}}),
    ]
    if "\0" not in name:  # which ends a name in an archive
        answers.append(arena.client.call("PUT", f"{base}/archive", packed(name)))
    assert {answer.status for answer in answers} <= {400, 404}, answers
    assert arena.client.call("GET", f"{base}/files").json["files"] == []
    assert arena.client.call("PUT", f"{base}/files/good", b"x").status == 201
    assert arena.client.post(f"{base}/move", {"from": "good", "to": name}).status == 400
    assert arena.value("import os; os.listdir('/mnt/data')") == "['good']"


def packed(*names: str, size: int = 0) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = size
            archive.addfile(member, io.BytesIO(b"\0" * size))
    return data.getvalue()


@pytest.mark.parametrize("squeeze", [gzip.compress, bz2.compress, lzma.compress], ids=["gzip", "bzip2", "xz"])
def test_an_archive_that_would_unpack_to_a_thousand_times_its_size(arena, squeeze):
    """Only plain archives are taken: they are as large as what is in them."""
    bomb = squeeze(packed("bomb", size=100 << 20))
    answer = arena.client.call("PUT", f"/sessions/{arena.session}/archive", bomb)
    assert answer.status == 400
    assert arena.value("import os; os.listdir()") == "[]"


@pytest.mark.parametrize("count, size", [(40, 1 << 20), (3_000, 0)], ids=["bytes", "files"])
def test_an_archive_over_the_quota(arena, count, size):
    """It stops where the quota ends, and what the container has is still its own to remove."""
    answer = arena.client.call("PUT", f"/sessions/{arena.session}/archive", packed(*map(str, range(count)), size=size))
    assert answer.status == 413
    code = "import os\nfor n in os.listdir(): os.unlink(n)\nopen('f', 'w').write('x' * 1000)"
    assert arena.value(code) == "1000"


@pytest.mark.parametrize(
    "method, path", [("GET", "files/x"), ("HEAD", "files/x"), ("GET", "stat/x"), ("GET", "archive?path=x")]
)
@pytest.mark.parametrize("target", ["/etc/passwd", "/proc/1/root", "..", "/dev/zero"])
def test_nothing_outside_is_reached_through_a_link(arena, method, path, target):
    arena.run(f"import os; os.symlink({target!r}, 'x')")
    answer = arena.client.call(method, f"/sessions/{arena.session}/{path}")
    assert b"root:" not in answer.body
    assert answer.status == 400 or (path.startswith("stat") and answer.json["kind"] == "other")


def test_names_of_255_bytes_and_both_normal_forms_are_kept_apart(arena):
    for name in ("x" * 255, "\u00e9", "e\u0301"):
        assert arena.client.call("PUT", f"/sessions/{arena.session}/files/{quote(name)}", b"x").status == 201
    assert arena.value("import os; sorted(map(len, os.listdir()))") == "[1, 2, 255]"
    listed = arena.client.call("GET", f"/sessions/{arena.session}/files").json["files"]
    assert sorted(entry["path"] for entry in listed) == ["e\u0301", "x" * 255, "\u00e9"]
    assert names_in_archive(arena) == ["e\u0301", "x" * 255, "\u00e9"]


def test_bad_names_coming_out(arena):
    arena.run("""
        import os
        for n in (b'a\\\\b', b'a\\nb', b'\\xff', b'\\x1b[31m', '\\u202ex'.encode()): open(n, 'w').close()
        open('good', 'w').close()
    """)
    listed = arena.client.call("GET", f"/sessions/{arena.session}/files").json["files"]
    assert [entry["path"] for entry in listed] == ["good"]
    assert names_in_archive(arena) == ["good"]


@pytest.mark.parametrize("target", ["/etc/passwd", "/proc/self/environ", "../../etc/passwd", "/", "good"])
def test_links_are_never_followed(arena, target):
    arena.run(f"""
        import os
        open('good', 'w').write('g')
        os.symlink({target!r}, 'link'); os.mkdir('d'); os.symlink({target!r}, 'd/l')
    """)
    base = f"/sessions/{arena.session}"
    assert arena.client.call("GET", f"{base}/files/link").status == 400
    assert arena.client.call("GET", f"{base}/files/link/passwd").status == 400
    assert arena.client.call("PUT", f"{base}/files/link/x", b"x").status == 400
    assert names_in_archive(arena) == ["d", "good"]
    # Writing onto a link replaces the link, not what it points to.
    assert arena.client.call("PUT", f"{base}/files/link", b"new").status == 201
    assert arena.value("import os; os.path.islink('link'), open('good').read()") == "(False, 'g')"


def test_a_link_swapped_in_while_files_are_read(arena):
    arena.run("""
        import os, threading
        os.mkdir('a'); open('a/passwd', 'w').write('mine')
        os.symlink('/etc', 'b')
        def swap():
            while True:
                os.rename('a', 'c'); os.rename('b', 'a'); os.rename('a', 'b'); os.rename('c', 'a')
        threading.Thread(target=swap, daemon=True).start()
    """)
    for _ in range(200):
        answer = arena.client.call("GET", f"/sessions/{arena.session}/files/a/passwd")
        assert answer.status in {400, 404} or answer.body == b"mine"


@pytest.mark.parametrize("make", ["os.mkfifo('x')", "socket.socket(socket.AF_UNIX).bind('x')", "os.mkdir('x')"])
def test_what_is_no_file_is_not_downloaded_and_does_not_hang(arena, make):
    arena.run(f"import os, socket\n{make}")
    assert arena.client.call("GET", f"/sessions/{arena.session}/files/x").status == 400


def test_an_upload_over_the_quota(arena):
    answer = arena.client.call("PUT", f"/sessions/{arena.session}/files/big", b"x" * (40 << 20))
    assert answer.status == 413
    assert arena.client.call("GET", f"/sessions/{arena.session}/files").json["files"] == []


def test_an_archive_with_lying_sizes(arena):
    header = tarfile.TarInfo("x")
    header.size = 1 << 40
    answer = arena.client.call("PUT", f"/sessions/{arena.session}/archive", header.tobuf() + b"x" * 1024)
    assert answer.status == 413
    header.size = 4096
    assert arena.client.call("PUT", f"/sessions/{arena.session}/archive", header.tobuf() + b"x" * 10).status == 400


def test_setuid_bits_do_not_survive(arena):
    member = tarfile.TarInfo("s")
    member.mode = 0o6777
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.addfile(member)
    assert arena.client.call("PUT", f"/sessions/{arena.session}/archive", data.getvalue()).status == 201
    assert arena.value("import os; oct(os.stat('s').st_mode)") == "'0o100755'"


def test_content_is_served_so_that_a_browser_does_not_run_it(arena):
    arena.client.call("PUT", f"/sessions/{arena.session}/files/x.html", b"<script>")
    headers = arena.client.call("GET", f"/sessions/{arena.session}/files/x.html").headers
    assert headers["content-type"] == "application/octet-stream"
    assert headers["content-disposition"].startswith("attachment")
    assert (headers["x-content-type-options"], headers["content-security-policy"]) == ("nosniff", "sandbox")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_members_of_an_archive_that_are_no_files_are_not_made(arena, kind):
    member = tarfile.TarInfo("odd")
    member.type, member.linkname = kind, "/etc/passwd"
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.addfile(member)
        archive.addfile(tarfile.TarInfo("good"))
    arena.client.call("PUT", f"/sessions/{arena.session}/archive", data.getvalue())
    assert "odd" not in str(arena.value("import os; os.listdir()"))


def test_a_lease_on_a_file_does_not_hold_up_a_download(arena):
    """Whoever opens a leased file waits for its holder, up to 45 seconds, unless he says that he will not."""
    assert arena.value("""
        import fcntl, os
        open('leased', 'w').write('x')
        fd = os.open('leased', os.O_RDWR)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    """) in {"0", "None"}
    started = time.monotonic()
    for method, body in (("GET", None), ("PUT", b"new"), ("DELETE", None)):
        arena.client.call(method, f"/sessions/{arena.session}/files/leased", body)
    # The kernel tells the holder by a signal, which ends an interpreter that does not expect it.
    assert arena.client.call("GET", f"/sessions/{arena.session}/archive").status in {200, 410}
    assert time.monotonic() - started < 5


def test_a_directory_that_is_filled_while_it_is_emptied(arena):
    arena.run("""
        import os, threading
        os.mkdir('d')
        def fill():
            n = 0
            while True:
                n += 1
                try: open(f'd/{n % 50}', 'w').close()
                except OSError: pass
        for _ in range(2): threading.Thread(target=fill, daemon=True).start()
    """)
    for _ in range(20):
        assert arena.client.call("DELETE", f"/sessions/{arena.session}/files/d").status in {200, 204, 400, 404}
        assert arena.client.call("GET", f"/sessions/{arena.session}/archive").status == 200


def test_a_file_that_grows_and_shrinks_while_it_is_read(arena):
    arena.run("""
        import os, threading
        def breathe():
            while True:
                with open('f', 'wb') as f: f.write(b'x' * 3_000_000); f.truncate(10)
        threading.Thread(target=breathe, daemon=True).start()
    """)
    for _ in range(20):
        answer = arena.client.call("GET", f"/sessions/{arena.session}/files/f")
        assert answer.status in {200, 404}
        assert arena.client.call("GET", f"/sessions/{arena.session}/archive").status == 200
