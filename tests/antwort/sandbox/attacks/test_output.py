"""Attacks by output: it is only ever text, cut where it is too long."""

from __future__ import annotations

import json

FLOOD = """
import os
os.write(1, b'first\\n')
for _ in range(676): os.write(1, b'x' * (1 << 20))
os.write(1, b'\\nlast\\n')
"""


def test_676_megabytes(arena):
    seen = arena.run(FLOOD, timeout_seconds=60)
    assert len(seen["stdout"]) < 2 << 20
    assert seen["stdout"].startswith("first\n")
    assert seen["stdout"].endswith("\nlast\n")
    assert f"[... {seen['cut_bytes']} bytes cut ...]" in seen["stdout"]
    assert seen["cut_bytes"] > 600 << 20


def test_a_flood_of_single_bytes_on_both_streams(arena):
    seen = arena.run("import os\nfor _ in range(100_000): os.write(1, b'o'); os.write(2, b'e')", timeout_seconds=60)
    assert seen["status"] == "success"
    assert set(seen["stdout"]) <= set("o\n[.] bytescut0123456789")


def test_control_characters_invalid_utf8_and_nul(arena):
    seen = arena.run(r"import os; os.write(1, b'a\x00\x1b[31m\xff\xfe\r\n\xe2\x80\xa8b')")
    assert seen["stdout"] == "a\0\x1b[31m\ufffd\ufffd\r\n\u2028b"


def test_output_that_imitates_an_sse_frame(arena):
    body = json.dumps({"code": "print('\\n\\nevent: result\\ndata: {}\\n\\n')", "stream": True}).encode()
    answer = arena.client.call("POST", f"/sessions/{arena.session}/execute", body)
    frames = [frame.split("\n") for frame in answer.body.decode().strip().split("\n\n")]
    assert {frame[0] for frame in frames[:-1]} == {"event: output"}
    assert frames[-1][0] == "event: result"
    assert json.loads(frames[-1][1].removeprefix("data: "))["status"] == "success"


FRAME = """
import json, os, struct, threading, time
header = {'call': 'a guess', 'status': 'success', 'exit_code': 0, 'parts': ['echo'], 'blobs': [6]}
head = json.dumps(header).encode()
frame = struct.pack('>II', len(head), 6) + head + b'forged'
"""


def test_output_that_imitates_the_control_protocol(arena):
    seen = arena.run(f"{FRAME}os.write(1, frame); os.write(2, frame)\n'real'")
    assert (seen["status"], seen["result"]) == ("success", "'real'")


def test_a_forged_answer_on_the_channel_ends_the_container(arena):
    seen = arena.run(f"""{FRAME}
for descriptor in range(3, 5000):
    try: os.write(descriptor, frame)
    except OSError: pass
time.sleep(5)
""")
    assert (seen["status"], seen["result"]) == ("ended", None)
    assert "nobody had asked" in seen["reason"]


def test_rubbish_on_the_channel_ends_the_container(arena):
    seen = arena.run("import os\nos.write(4000, b'\\xff' * 64)\nimport time; time.sleep(5)")
    assert seen["status"] == "ended"
    assert "broke its channel" in seen["reason"]


def test_an_answer_written_ahead_for_the_next_call(arena):
    code = f"{FRAME}threading.Thread(target=lambda: (time.sleep(0.3), os.write(4000, frame)), daemon=True).start()"
    arena.run(code)
    answer = arena.client.post(f"/sessions/{arena.session}/execute", {"code": "import time; time.sleep(2); 'real'"})
    assert answer.json["result"] is None
    assert answer.json["status"] == "ended"


def test_descriptors_sent_over_the_channel_do_not_pile_up_in_the_server(arena):
    before = arena.server.traces()["descriptors"]
    code = """
        import socket, os, array
        s = socket.socket(fileno=os.dup(4000))
        for _ in range(50):
            try: s.sendmsg([b''], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0] * 200))])
            except OSError: break
    """
    arena.run(code)
    assert arena.server.traces()["descriptors"] - before <= 4


def test_closed_and_replaced_descriptors(arena):
    assert arena.run("import os\nos.closerange(3, 1024)\nprint('still here')")["stdout"] == "still here\n"
    seen = arena.run("import os, sys\nsys.stdout.close(); os.close(2); 'answered'")
    assert seen["result"] == "'answered'"


def test_a_closed_channel_ends_the_container(arena):
    seen = arena.run("import os\nos.close(4000)\nimport time; time.sleep(5)")
    assert seen["status"] == "ended"


def test_a_forked_copy_cannot_answer_twice(arena):
    assert arena.value("import os\nos.fork()\n'once'") == "'once'"
    assert arena.value("1 + 1") == "2"


def test_a_million_files(arena):
    arena.run("import os\nfor i in range(400): open(f'/mnt/data/{i}', 'w').close()")
    listed = arena.client.call("GET", f"/sessions/{arena.session}/files").json["files"]
    assert len(listed) == 400
