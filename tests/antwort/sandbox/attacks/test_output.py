"""Attacks by output: floods, forged frames and events, descriptors, many files, large images."""

from __future__ import annotations

import errno
import io
import json
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from waiting import wait_until

FLOOD = """
import os
os.write(1, b'first\\n')
for _ in range(676): os.write(1, b'x' * (1 << 20))
os.write(1, b'\\nlast\\n')
"""


def peak_kilobytes(pid: int) -> int:
    """Peak memory (VmHWM), which never decreases."""
    return int(Path(f"/proc/{pid}/status").read_text(encoding="utf-8").partition("VmHWM:")[2].split()[0])


def test_676_megabytes_of_output_are_truncated(attacker):
    seen = attacker.run(FLOOD, timeout_seconds=60)
    assert len(seen["stdout"]) < 2 << 20
    assert seen["stdout"].startswith("first\n")
    assert seen["stdout"].endswith("\nlast\n")
    assert f"[... {seen['cut_bytes']} bytes cut ...]" in seen["stdout"]
    assert seen["cut_bytes"] > 600 << 20


def test_a_flood_of_single_bytes_on_both_streams(attacker):
    seen = attacker.run("import os\nfor _ in range(100_000): os.write(1, b'o'); os.write(2, b'e')", timeout_seconds=60)
    assert seen["status"] == "success"
    assert set(seen["stdout"]) <= set("o\n[.] bytescut0123456789")


def test_control_characters_invalid_utf8_and_nul(attacker):
    seen = attacker.run(r"import os; os.write(1, b'a\x00\x1b[31m\xff\xfe\r\n\xe2\x80\xa8b')")
    assert seen["stdout"] == "a\0\x1b[31m\ufffd\ufffd\r\n\u2028b"


def test_output_that_imitates_an_sse_frame(attacker):
    body = json.dumps({"code": "print('\\n\\nevent: result\\ndata: {}\\n\\n')", "stream": True}).encode()
    response = attacker.client.call("POST", f"/sessions/{attacker.session}/execute", body)
    frames = [frame.split("\n") for frame in response.body.decode().strip().split("\n\n")]
    assert {frame[0] for frame in frames[:-1]} == {"event: output"}
    assert frames[-1][0] == "event: result"
    assert json.loads(frames[-1][1].removeprefix("data: "))["status"] == "success"


FRAME = """
import json, os, struct, threading, time
header = {'call': 'a guess', 'status': 'success', 'exit_code': 0, 'parts': ['result'], 'blobs': [6]}
head = json.dumps(header).encode()
frame = struct.pack('>II', len(head), 6) + head + b'forged'
"""


def test_output_that_imitates_the_control_protocol(attacker):
    seen = attacker.run(f"{FRAME}os.write(1, frame); os.write(2, frame)\n'real'")
    assert (seen["status"], seen["result"]) == ("success", "'real'")


def test_a_forged_reply_on_the_channel_ends_the_container(attacker):
    seen = attacker.run(f"""{FRAME}
for descriptor in range(3, 5000):
    try: os.write(descriptor, frame)
    except OSError: pass
time.sleep(5)
""")
    assert (seen["status"], seen["result"]) == ("ended", None)
    assert "unexpected reply" in seen["reason"]


def test_invalid_bytes_on_the_channel_end_the_container(attacker):
    seen = attacker.run("import os\nos.write(4000, b'\\xff' * 64)\nimport time; time.sleep(5)")
    assert seen["status"] == "ended"
    assert "broke its control channel" in seen["reason"]


def test_a_reply_sent_ahead_of_the_next_call_ends_the_container(attacker):
    code = f"{FRAME}threading.Thread(target=lambda: (time.sleep(0.3), os.write(4000, frame)), daemon=True).start()"
    attacker.run(code)
    response = attacker.client.post(
        f"/sessions/{attacker.session}/execute", {"code": "import time; time.sleep(2); 'real'"}
    )
    assert response.json["result"] is None
    assert response.json["status"] == "ended"


DESCRIPTORS = """
import array, os, socket, struct, time
channel = socket.socket(fileno=os.dup(4000))
channel.sendall(struct.pack('>II', 1000, 0))
sent = 0
for _ in range(50):
    rights = array.array('i', [0] * 200)
    sent += channel.sendmsg([b' '], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    time.sleep(0.01)
os.write(1, str(sent).encode())
time.sleep(1)
os._exit(0)
"""
"""Each with a byte, since a stream socket needs one; the bytes are part of a frame that never ends."""


def test_descriptors_sent_over_the_channel_do_not_accumulate(attacker):
    before, peak = attacker.server.resources()["descriptors"], 0
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(attacker.run, DESCRIPTORS)
        while not running.done():
            peak = max(peak, attacker.server.resources()["descriptors"])
    assert running.result()["stdout"] == "50"
    assert 0 < peak <= before + 8  # connections are opened and closed as well
    wait_until(lambda: attacker.server.resources()["descriptors"] - before <= 4)


def test_closed_and_replaced_descriptors(attacker):
    assert attacker.run("import os\nos.closerange(3, 1024)\nprint('still here')")["stdout"] == "still here\n"
    seen = attacker.run("import os, sys\nsys.stdout.close(); os.close(2); 'replied'")
    assert seen["result"] == "'replied'"


def test_a_closed_channel_ends_the_container(attacker):
    seen = attacker.run("import os\nos.close(4000)\nimport time; time.sleep(5)")
    assert seen["status"] == "ended"


def test_a_forked_copy_cannot_reply(attacker):
    assert attacker.evaluate("import os\nos.fork()\n'once'") == "'once'"
    assert attacker.evaluate("1 + 1") == "2"


MANY_FILES = """
import os
os.makedirs('output', exist_ok=True)
made = 0
try:
    for made in range(1_000_000): os.close(os.open(f'output/{made:06}', os.O_CREAT | os.O_WRONLY))
except OSError as error: print(error.errno, made)
"""


@pytest.mark.parametrize("attacker", [{"memory_bytes": 1 << 30, "disk_files": 100_000}], indirect=True)
def test_a_million_files_in_a_session(attacker):
    """As many as the quota allows; they are listed in pages and packed, while the sibling is served."""
    seen = attacker.run(MANY_FILES, timeout_seconds=60)
    number, made = map(int, seen["stdout"].split())
    assert number == errno.ENOSPC
    assert 90_000 < made < 100_000
    base = f"/sessions/{attacker.session}"
    first = attacker.client.call("GET", f"{base}/files?path=output").json
    assert (len(first["files"]), first["has_more"]) == (10_000, True)
    last = attacker.client.call("GET", f"{base}/files?path=output&after=output/{made - 10:06}").json
    assert (len(last["files"]), last["has_more"]) == (9, False)
    before = peak_kilobytes(attacker.server.process.pid)
    packed = attacker.client.call("GET", f"{base}/archive?path=output").body
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        assert sum(1 for _ in archive) == made
    assert peak_kilobytes(attacker.server.process.pid) - before < 200_000
    assert attacker.client.call("DELETE", f"{base}/files/output").status == 204
    assert attacker.evaluate("import os; os.listdir()") == "[]"


def test_a_million_files_of_one_execution(attacker):
    seen = attacker.client.execute(MANY_FILES, timeout_seconds=60)
    assert seen["stdout"].startswith(f"{errno.ENOSPC} ")
    assert 9_000 < len(seen["files_produced"]) <= 10_000
    assert "left out of files_produced" in seen["stderr"]


ENDLESS = "import os\nos.write(1, b'first ')\nwhile True: os.write(1, b'x' * 65536)"


def test_an_endless_line(attacker):
    before = peak_kilobytes(attacker.server.process.pid)
    seen = attacker.run(ENDLESS, timeout_seconds=2)
    assert (seen["status"], seen["stdout"][:7]) == ("timeout", "first x")
    assert len(seen["stdout"]) < 2 << 20
    assert f"[... {seen['cut_bytes']} bytes cut ...]" in seen["stdout"]
    assert peak_kilobytes(attacker.server.process.pid) - before < 64_000
    assert attacker.evaluate("'alive'") == "'alive'"


def events(attacker, code: str, **fields) -> list[tuple[str, dict]]:
    body = json.dumps({"code": code, "stream": True, **fields}).encode()
    response = attacker.client.call("POST", f"/sessions/{attacker.session}/execute", body)
    found = [frame.split("\n") for frame in response.body.decode().strip().split("\n\n")]
    assert all(len(frame) == 2 for frame in found)
    return [(kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for kind, data in found]


def test_an_endless_line_as_events(attacker):
    found = events(attacker, ENDLESS, timeout_seconds=1)
    assert (found[-1][0], found[-1][1]["status"]) == ("result", "timeout")
    sent = "".join(event["text"] for kind, event in found if kind == "output")
    assert len(sent) < 2 << 20
    assert "bytes cut" in sent


def test_control_characters_invalid_utf8_and_nul_as_events(attacker):
    found = events(attacker, r"import os; os.write(1, b'a\x00\x1b[31m\xff\xfe\r\n\r\n\n\xe2\x80\xa8data: b\xe2')")
    text = "a\0\x1b[31m\ufffd\ufffd\r\n\r\n\n\u2028data: b\ufffd"
    assert "".join(event["text"] for kind, event in found if kind == "output") == text
    assert found[-1][1]["stdout"] == text


def test_images_over_the_limit_are_left_out_and_counted(attacker):
    before = peak_kilobytes(attacker.server.process.pid)
    seen = attacker.run("""
        class Image:
            def _repr_png_(self): return b'x' * (40 << 20)
        Image()
    """)
    assert (seen["status"], seen["images"], seen["images_left_out"]) == ("success", [], 1)
    assert "1 images were left out" in seen["stderr"]
    seen = attacker.run(
        """
        import matplotlib.pyplot as plt
        for i in range(105): plt.figure(figsize=(0.2, 0.2))
    """,
        timeout_seconds=60,
    )
    assert (len(seen["images"]), seen["images_left_out"]) == (100, 5)
    assert attacker.run("1")["images_left_out"] == 0
    assert peak_kilobytes(attacker.server.process.pid) - before < 64_000


def test_an_oversized_reply_ends_the_container_before_it_is_buffered(attacker):
    before = peak_kilobytes(attacker.server.process.pid)
    seen = attacker.run("""
        import os, struct, time
        os.write(4000, struct.pack('>II', 100, (32 << 20) + 1))
        for _ in range(64): os.write(4000, b'x' * (1 << 20))
    """)
    assert seen["status"] == "ended"
    assert "is too large" in seen["reason"]
    assert peak_kilobytes(attacker.server.process.pid) - before < 16_000
