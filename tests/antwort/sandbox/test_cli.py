"""The entry point: what it refuses, and that it is healthy in time in a bare tree that has only what the image has."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from antwort.sandbox.host import bubblewrap
from antwort.testing.sandbox_protocol import Client

ROOT = Path(__file__).parents[3]
CONTAINERFILE = ROOT / "deploy" / "sandbox" / "Containerfile"


def antwort(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "antwort", *arguments]
    return subprocess.run(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_doctor_tries_a_container():
    seen = antwort("doctor")
    assert seen.returncode == 0, seen.stderr
    assert f"A container was started and answered: '{sys.version.split()[0]}'" in seen.stdout


def test_it_works_with_as_few_open_files_as_most_hosts_allow():
    command = f"ulimit -n 1024 && exec {sys.executable} -m antwort doctor"
    seen = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert seen.returncode == 0, seen.stderr


def test_beyond_loopback_it_does_not_start_without_a_token():
    seen = antwort("sandbox", "--host", "0.0.0.0")  # noqa: S104 - what must be refused
    assert seen.returncode == 1
    assert "SANDBOX_TOKEN" in seen.stderr


@pytest.mark.parametrize(
    "arguments, setting, complaint",
    [
        (["--port", "99999"], {}, "--port"),
        (["--uds", "/nowhere/socket", "--port", "1"], {}, "choose one place to listen"),
        (["--with-parent"], {}, "pipe as standard input"),
        ([], {"SANDBOX_OUTPUT_DIR": "../out"}, "SANDBOX_OUTPUT_DIR"),
        ([], {"SANDBOX_MAX_CONCURRENT": "0"}, "SANDBOX_MAX_CONCURRENT=0"),
        ([], {"SANDBOX_PORT": "http"}, "SANDBOX_PORT='http' must be a number"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_before_anything_is_tried(arguments, setting, complaint):
    seen = antwort("sandbox", *arguments, **setting)
    assert seen.returncode in {1, 2}
    assert complaint in seen.stderr
    assert "Traceback" not in seen.stderr


def test_an_address_that_is_taken_is_told():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        seen = antwort("sandbox", "--port", str(port))
    assert seen.returncode == 1
    assert f"cannot listen on 127.0.0.1, port {port}" in seen.stderr


def test_the_command_line_starts_without_the_server():
    seen = antwort("--help")
    assert "doctor" in seen.stdout
    code = "import sys; import antwort.cli; print('antwort.sandbox' in sys.modules, 'starlette' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False False\n"


def test_the_image_keeps_its_promises():
    text = CONTAINERFILE.read_text(encoding="utf-8")
    assert re.search(r"^USER 10001:10001$", text, re.MULTILINE)
    assert "EXPOSE 8080" in text
    assert "SANDBOX_PORT=8080" in text
    assert 'ENTRYPOINT ["antwort", "sandbox"]' in text
    assert "[sandbox]" in text


def test_the_entry_point_is_healthy_within_five_seconds_in_a_bare_tree(tmp_path, package_index):
    """No image can be built without an engine, so: the same user, port and contents in an empty root."""
    package_index.add("tiny-thing", {"tiny_thing.py": "ANSWER = 42\n"})
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    found = bubblewrap.find()
    assert found is not None
    (tmp_path / "state").mkdir()
    # First, so that nothing bound below it is covered.
    tree = ["--tmpfs", "/tmp", "--proc", "/proc", "--dev", "/dev", "--ro-bind", "/usr", "/usr"]  # noqa: S108 - its own
    for name in ("bin", "lib", "lib64", "sbin"):
        link = Path("/", name)
        if link.is_symlink():
            tree += ["--symlink", str(link.readlink()), str(link)]
        else:
            tree += ["--ro-bind-try", str(link), str(link)]
    for place in (sys.base_prefix, sys.prefix, str(ROOT / "src"), "/etc/ld.so.cache"):
        tree += ["--ro-bind", place, place]
    settings = {"SANDBOX_PORT": str(port), "SANDBOX_STATE": "/var/lib/sandbox", "PATH": "/usr/bin:/bin"}
    settings |= {"PYTHONPATH": str(ROOT / "src"), "SANDBOX_PYTHON_INDEX": package_index.url}
    words = [word for name, value in settings.items() for word in ("--setenv", name, value)]
    command = [str(found), "--unshare-user", "--unshare-pid", "--uid", "10001", "--gid", "10001", "--clearenv", *words]
    command += [*tree, "--bind", str(tmp_path / "state"), "/var/lib/sandbox", "--die-with-parent"]
    command += ["--", sys.executable, "-m", "antwort", "sandbox"]
    if os.geteuid() == 0:
        # A real ordinary user, as in the image: one that is root outside would find parts of /proc covered.
        os.chown(tmp_path / "state", 10001, 10001)
        shown = [sys.base_prefix, sys.prefix, str(ROOT), str(tmp_path / "state")]
        command = [sys.executable, str(Path(__file__).with_name("as_user.py")), "10001", *shown, "--", *command]
    begun = time.monotonic()
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        client = Client(f"http://127.0.0.1:{port}")
        while time.monotonic() - begun < 10:
            with contextlib.suppress(OSError):
                if client.call("GET", "/health").status == 200:
                    break
            time.sleep(0.05)
        healthy = time.monotonic() - begun
        seen = client.execute("import os, pandas; print(os.getuid(), pandas.DataFrame({'a': [1]}).shape)")
        assert seen["stdout"] == "1000 (1, 1)\n", seen
        assert healthy < 5
        seen = client.execute("import tiny_thing; print(tiny_thing.ANSWER)", requirements=["tiny-thing==1.0"])
        assert seen["stdout"] == "42\n", seen
    finally:
        process.terminate()
        process.communicate(timeout=20)
