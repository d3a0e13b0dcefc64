"""CLI: rejected options and settings, doctor, start-up time in a root like that of the image."""

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


def test_doctor_runs_a_container():
    seen = antwort("doctor")
    assert seen.returncode == 0, seen.stderr
    assert f"A container was started and returned: '{sys.version.split()[0]}'" in seen.stdout
    assert "hell commands" in seen.stdout


def test_doctor_works_with_1024_open_files():
    command = f"ulimit -n 1024 && exec {sys.executable} -m antwort doctor"
    seen = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert seen.returncode == 0, seen.stderr


def test_other_than_loopback_needs_a_token():
    seen = antwort("sandbox", "--host", "0.0.0.0")  # noqa: S104 - must be refused
    assert seen.returncode == 1
    assert "SANDBOX_TOKEN" in seen.stderr


@pytest.mark.parametrize(
    "arguments, setting, message",
    [
        (["--port", "99999"], {}, "--port"),
        (["--uds", "/nowhere/socket", "--port", "1"], {}, "--uds cannot be combined with"),
        (["--with-parent"], {}, "pipe as standard input"),
        ([], {"SANDBOX_OUTPUT_DIR": "../out"}, "SANDBOX_OUTPUT_DIR"),
        ([], {"SANDBOX_MAX_CONCURRENT": "0"}, "SANDBOX_MAX_CONCURRENT=0"),
        ([], {"SANDBOX_PORT": "http"}, "SANDBOX_PORT='http' must be a number"),
    ],
    ids=str,
)
def test_invalid_options_and_settings_are_rejected(arguments, setting, message):
    seen = antwort("sandbox", *arguments, **setting)
    assert seen.returncode in {1, 2}
    assert message in seen.stderr
    assert "Traceback" not in seen.stderr


def test_an_address_in_use_is_reported():
    with socket.create_server(("127.0.0.1", 0)) as in_use:
        port = in_use.getsockname()[1]
        seen = antwort("sandbox", "--port", str(port))
    assert seen.returncode == 1
    assert f"cannot listen on 127.0.0.1, port {port}" in seen.stderr


def test_help_does_not_import_the_server():
    seen = antwort("--help")
    assert "doctor" in seen.stdout
    code = "import sys; import antwort.cli; print('antwort.sandbox' in sys.modules, 'starlette' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False False\n"


def test_containerfile_user_port_and_entry_point():
    text = CONTAINERFILE.read_text(encoding="utf-8")
    assert re.search(r"^USER 10001:10001$", text, re.MULTILINE)
    assert "EXPOSE 8080" in text
    assert "SANDBOX_PORT=8080" in text
    assert 'ENTRYPOINT ["antwort"]\nCMD ["sandbox"]' in text
    assert "requirements/sandbox.lock" in text


def test_the_entry_point_is_healthy_within_five_seconds_in_a_root_like_the_image(tmp_path, package_index):
    """Without a container engine: the same user, port and files in an empty root."""
    package_index.add("tiny-thing", {"tiny_thing.py": "ANSWER = 42\n"})
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    found = bubblewrap.find_bwrap()
    assert found is not None
    (tmp_path / "state").mkdir()
    # First, so that it covers no bind mount below it.
    tree = ["--tmpfs", "/tmp", "--proc", "/proc", "--dev", "/dev", "--ro-bind", "/usr", "/usr"]  # noqa: S108 - its own
    for name in ("bin", "lib", "lib64", "sbin"):
        link = Path("/", name)
        if link.is_symlink():
            tree += ["--symlink", str(link.readlink()), str(link)]
        else:
            tree += ["--ro-bind-try", str(link), str(link)]
    for path in (sys.base_prefix, sys.prefix, str(ROOT / "src"), "/etc/ld.so.cache"):
        tree += ["--ro-bind", path, path]
    settings = {"SANDBOX_PORT": str(port), "SANDBOX_STATE": "/var/lib/sandbox", "PATH": "/usr/bin:/bin"}
    settings |= {"PYTHONPATH": str(ROOT / "src"), "SANDBOX_PYTHON_INDEX": package_index.url}
    words = [word for name, value in settings.items() for word in ("--setenv", name, value)]
    command = [str(found), "--unshare-user", "--unshare-pid", "--uid", "10001", "--gid", "10001", "--clearenv", *words]
    command += [*tree, "--bind", str(tmp_path / "state"), "/var/lib/sandbox", "--die-with-parent"]
    command += ["--", sys.executable, "-m", "antwort", "sandbox"]
    if os.geteuid() == 0:
        # An ordinary user as in the image: for one that is root outside, parts of /proc are covered.
        os.chown(tmp_path / "state", 10001, 10001)
        shown = [sys.base_prefix, sys.prefix, str(ROOT), str(tmp_path / "state")]
        command = [sys.executable, str(Path(__file__).with_name("as_user.py")), "10001", *shown, "--", *command]
    started = time.monotonic()
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        client = Client(f"http://127.0.0.1:{port}")
        while time.monotonic() - started < 10:
            with contextlib.suppress(OSError):
                if client.call("GET", "/health").status == 200:
                    break
            time.sleep(0.05)
        healthy = time.monotonic() - started
        seen = client.execute("import os, pandas; print(os.getuid(), pandas.DataFrame({'a': [1]}).shape)")
        assert seen["stdout"] == "1000 (1, 1)\n", seen
        assert healthy < 5
        seen = client.execute("import tiny_thing; print(tiny_thing.ANSWER)", requirements=["tiny-thing==1.0"])
        assert seen["stdout"] == "42\n", seen
    finally:
        process.terminate()
        process.communicate(timeout=20)
