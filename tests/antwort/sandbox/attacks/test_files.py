"""Attacks on file upload and download."""

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


def names_in_archive(attacker) -> list[str]:
    packed = attacker.client.call("GET", f"/sessions/{attacker.session}/archive").body
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        return sorted(archive.getnames())


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names_are_refused_on_upload(attacker, name):
    """As a file, with an execution or a session, as a move target, in an archive, as the archive's directory."""
    base = f"/sessions/{attacker.session}"
    responses = [
        attacker.client.call("PUT", f"{base}/files/{quote(name, safe='')}", b"x"),
        attacker.client.call("PUT", f"{base}/archive?path={quote(name, safe='')}", packed("good")),
        attacker.client.post("/execute", {"code": "1", "files": {name: ""}}),
        attacker.client.post("/sessions", {"files": {name: ""}}),
    ]
    if "\0" not in name:  # NUL terminates a name in an archive
        responses.append(attacker.client.call("PUT", f"{base}/archive", packed(name)))
    assert {response.status for response in responses} <= {400, 404}, responses
    assert attacker.client.call("GET", f"{base}/files").json["files"] == []
    assert attacker.client.call("PUT", f"{base}/files/good", b"x").status == 201
    assert attacker.client.post(f"{base}/move", {"from": "good", "to": name}).status == 400
    assert attacker.evaluate("import os; os.listdir('/mnt/data')") == "['good']"


def packed(*names: str, size: int = 0) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = size
            archive.addfile(member, io.BytesIO(b"\0" * size))
    return data.getvalue()


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress], ids=["gzip", "bzip2", "xz"])
def test_compressed_archives_are_refused(attacker, compress):
    """An uncompressed archive is as large as its content, so it cannot be a bomb."""
    bomb = compress(packed("bomb", size=100 << 20))
    response = attacker.client.call("PUT", f"/sessions/{attacker.session}/archive", bomb)
    assert response.status == 400
    assert attacker.evaluate("import os; os.listdir()") == "[]"


@pytest.mark.parametrize("count, size", [(40, 1 << 20), (3_000, 0)], ids=["bytes", "files"])
def test_an_archive_over_the_quota(attacker, count, size):
    """Unpacking stops at the quota, and the container can remove the files."""
    response = attacker.client.call(
        "PUT", f"/sessions/{attacker.session}/archive", packed(*map(str, range(count)), size=size)
    )
    assert response.status == 413
    code = "import os\nfor n in os.listdir(): os.unlink(n)\nopen('f', 'w').write('x' * 1000)"
    assert attacker.evaluate(code) == "1000"


@pytest.mark.parametrize(
    "method, path", [("GET", "files/x"), ("HEAD", "files/x"), ("GET", "stat/x"), ("GET", "archive?path=x")]
)
@pytest.mark.parametrize("target", ["/etc/passwd", "/proc/1/root", "..", "/dev/zero"])
def test_links_give_no_access_to_files_outside(attacker, method, path, target):
    attacker.run(f"import os; os.symlink({target!r}, 'x')")
    response = attacker.client.call(method, f"/sessions/{attacker.session}/{path}")
    assert b"root:" not in response.body
    assert response.status == 400 or (path.startswith("stat") and response.json["kind"] == "other")


def test_names_of_255_bytes_and_both_unicode_normal_forms_are_distinct(attacker):
    for name in ("x" * 255, "\u00e9", "e\u0301"):
        assert attacker.client.call("PUT", f"/sessions/{attacker.session}/files/{quote(name)}", b"x").status == 201
    assert attacker.evaluate("import os; sorted(map(len, os.listdir()))") == "[1, 2, 255]"
    listed = attacker.client.call("GET", f"/sessions/{attacker.session}/files").json["files"]
    assert sorted(entry["path"] for entry in listed) == ["e\u0301", "x" * 255, "\u00e9"]
    assert names_in_archive(attacker) == ["e\u0301", "x" * 255, "\u00e9"]


def test_bad_names_are_not_listed_or_packed(attacker):
    attacker.run("""
        import os
        for n in (b'a\\\\b', b'a\\nb', b'\\xff', b'\\x1b[31m', '\\u202ex'.encode()): open(n, 'w').close()
        open('good', 'w').close()
    """)
    listed = attacker.client.call("GET", f"/sessions/{attacker.session}/files").json["files"]
    assert [entry["path"] for entry in listed] == ["good"]
    assert names_in_archive(attacker) == ["good"]


@pytest.mark.parametrize("target", ["/etc/passwd", "/proc/self/environ", "../../etc/passwd", "/", "good"])
def test_links_are_never_followed(attacker, target):
    attacker.run(f"""
        import os
        open('good', 'w').write('g')
        os.symlink({target!r}, 'link'); os.mkdir('d'); os.symlink({target!r}, 'd/l')
    """)
    base = f"/sessions/{attacker.session}"
    assert attacker.client.call("GET", f"{base}/files/link").status == 400
    assert attacker.client.call("GET", f"{base}/files/link/passwd").status == 400
    assert attacker.client.call("PUT", f"{base}/files/link/x", b"x").status == 400
    assert names_in_archive(attacker) == ["d", "good"]
    # Writing onto a link replaces the link, not what it points to.
    assert attacker.client.call("PUT", f"{base}/files/link", b"new").status == 201
    assert attacker.evaluate("import os; os.path.islink('link'), open('good').read()") == "(False, 'g')"


def test_a_link_swapped_in_while_files_are_read(attacker):
    attacker.run("""
        import os, threading
        os.mkdir('a'); open('a/passwd', 'w').write('mine')
        os.symlink('/etc', 'b')
        def swap():
            while True:
                os.rename('a', 'c'); os.rename('b', 'a'); os.rename('a', 'b'); os.rename('c', 'a')
        threading.Thread(target=swap, daemon=True).start()
    """)
    for _ in range(200):
        response = attacker.client.call("GET", f"/sessions/{attacker.session}/files/a/passwd")
        assert response.status in {400, 404} or response.body == b"mine"


@pytest.mark.parametrize("make", ["os.mkfifo('x')", "socket.socket(socket.AF_UNIX).bind('x')", "os.mkdir('x')"])
def test_fifos_sockets_and_directories_are_not_downloaded(attacker, make):
    attacker.run(f"import os, socket\n{make}")
    assert attacker.client.call("GET", f"/sessions/{attacker.session}/files/x").status == 400


def test_an_upload_over_the_quota(attacker):
    response = attacker.client.call("PUT", f"/sessions/{attacker.session}/files/big", b"x" * (40 << 20))
    assert response.status == 413
    assert attacker.client.call("GET", f"/sessions/{attacker.session}/files").json["files"] == []


def test_an_archive_with_wrong_sizes(attacker):
    header = tarfile.TarInfo("x")
    header.size = 1 << 40
    response = attacker.client.call("PUT", f"/sessions/{attacker.session}/archive", header.tobuf() + b"x" * 1024)
    assert response.status == 413
    header.size = 4096
    assert (
        attacker.client.call("PUT", f"/sessions/{attacker.session}/archive", header.tobuf() + b"x" * 10).status == 400
    )


def test_setuid_bits_are_removed(attacker):
    member = tarfile.TarInfo("s")
    member.mode = 0o6777
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.addfile(member)
    assert attacker.client.call("PUT", f"/sessions/{attacker.session}/archive", data.getvalue()).status == 201
    assert attacker.evaluate("import os; oct(os.stat('s').st_mode)") == "'0o100755'"


def test_downloads_have_headers_that_prevent_execution_in_a_browser(attacker):
    attacker.client.call("PUT", f"/sessions/{attacker.session}/files/x.html", b"<script>")
    headers = attacker.client.call("GET", f"/sessions/{attacker.session}/files/x.html").headers
    assert headers["content-type"] == "application/octet-stream"
    assert headers["content-disposition"].startswith("attachment")
    assert (headers["x-content-type-options"], headers["content-security-policy"]) == ("nosniff", "sandbox")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_an_archive_are_not_created(attacker, kind):
    member = tarfile.TarInfo("odd")
    member.type, member.linkname = kind, "/etc/passwd"
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.addfile(member)
        archive.addfile(tarfile.TarInfo("good"))
    attacker.client.call("PUT", f"/sessions/{attacker.session}/archive", data.getvalue())
    assert "odd" not in str(attacker.evaluate("import os; os.listdir()"))


def test_a_file_lease_does_not_block_a_download(attacker):
    """Opening a leased file blocks for up to 45 seconds, unless it is opened with O_NONBLOCK."""
    assert attacker.evaluate("""
        import fcntl, os
        open('leased', 'w').write('x')
        fd = os.open('leased', os.O_RDWR)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    """) in {"0", "None"}
    started = time.monotonic()
    for method, body in (("GET", None), ("PUT", b"new"), ("DELETE", None)):
        attacker.client.call(method, f"/sessions/{attacker.session}/files/leased", body)
    # The kernel sends the holder a signal, which kills an interpreter without a handler.
    assert attacker.client.call("GET", f"/sessions/{attacker.session}/archive").status in {200, 410}
    assert time.monotonic() - started < 5


def test_a_directory_that_grows_while_it_is_deleted(attacker):
    attacker.run("""
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
        assert attacker.client.call("DELETE", f"/sessions/{attacker.session}/files/d").status in {200, 204, 400, 404}
        assert attacker.client.call("GET", f"/sessions/{attacker.session}/archive").status == 200


def test_a_file_that_grows_and_shrinks_while_it_is_read(attacker):
    attacker.run("""
        import os, threading
        def resize():
            while True:
                with open('f', 'wb') as f: f.write(b'x' * 3_000_000); f.truncate(10)
        threading.Thread(target=resize, daemon=True).start()
    """)
    for _ in range(20):
        response = attacker.client.call("GET", f"/sessions/{attacker.session}/files/f")
        assert response.status in {200, 404}
        assert attacker.client.call("GET", f"/sessions/{attacker.session}/archive").status == 200
