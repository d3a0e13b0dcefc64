"""Attacks by packages: zip bombs, many installations, malicious wheels, shared files."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fake_package_index
import pytest
from waiting import wait_until

from antwort.sandbox.errors import TooLarge
from antwort.sandbox.files import quota
from antwort.sandbox.host.process import descendants

MEGABYTE = 1 << 20
LIMIT = 64 * MEGABYTE


@dataclass
class InstallServer:
    """A server with low limits, and its package index."""

    running: Any
    index: fake_package_index.Index
    packages: Path


@pytest.fixture(scope="module", params=["user", "root"])
def install_server(request, serve, identities, tmp_path_factory) -> Iterator[InstallServer]:
    if request.param not in identities:
        pytest.skip("needs root")
    settings = {"modules": "json", "max_install_bytes": str(LIMIT), "max_install_files": "1000"}
    with (
        fake_package_index.running(tmp_path_factory.mktemp("index")) as index,
        serve(request.param, python_index=index.url, **settings) as running,
    ):
        yield InstallServer(running, index, running.state / "packages")


@pytest.fixture
def package_attacker(install_server, attacker_on):
    with attacker_on(install_server.running) as attacker:
        yield attacker


@contextlib.contextmanager
def record_peak(measure) -> Iterator[list[int]]:
    """The highest value meanwhile, in a list of one."""
    peak, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.is_set():
            peak[0] = max(peak[0], measure())
            stop.wait(0.01)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield peak
    finally:
        stop.set()
        watching.join()


def used_bytes(directory: Path) -> int:
    """Bytes on the disk; 0 if they cannot be measured while files change."""
    with contextlib.suppress(TooLarge):
        return quota.measure(directory).size
    return 0


def test_a_wheel_that_is_a_zip_bomb(install_server, package_attacker):
    install_server.index.add("bomb", {"bomb.py": "", "zeros": b"\0" * (600 * MEGABYTE)})
    with record_peak(lambda: used_bytes(install_server.packages)) as peak:
        for seen in (
            package_attacker.client.execute("print(1)", requirements=["bomb"]),
            package_attacker.run("print(1)", requirements=["bomb"]),
        ):
            assert (seen["status"], seen["exit_code"], seen["stdout"]) == ("error", -1, "")
            assert seen["stderr"] == f"package installation failed: more than the limit of {LIMIT} bytes"
        assert package_attacker.client.post("/sessions", {"requirements": ["bomb"]}).status == 400
    # One file, which RLIMIT_FSIZE limits.
    assert LIMIT // 2 < peak[0] < LIMIT + 8 * MEGABYTE
    assert package_attacker.evaluate("1 + 1") == "2"


def test_a_wheel_with_too_many_files(install_server, package_attacker):
    install_server.index.add("many-files", {f"many/{i // 500}/{i}": b"x" for i in range(50_000)})
    seen = package_attacker.client.execute("print(1)", requirements=["many-files"], timeout_seconds=50)
    assert seen["stderr"] == "package installation failed: more than the limit of 1000 files"


def test_many_installations_at_once(serve, attacker_on, identity, package_index):
    names = [f"thing-{i}" for i in range(30)]
    for name in names:
        package_index.add(name, {f"{name.replace('-', '_')}.py": "", "data": os.urandom(MEGABYTE)})
    settings = {"max_installs": "2", "install_queue": "8", "max_concurrent": "40", "max_packages_bytes": str(20 << 20)}
    with serve(identity, python_index=package_index.url, modules="json", **settings) as running:
        packages = running.state / "packages"

        def run(name: str):
            return running.client.post("/execute", {"code": "print(1)", "requirements": [name], "timeout_seconds": 50})

        with (
            attacker_on(running),
            record_peak(lambda: len(fake_package_index.installers(running.process.pid))) as concurrent,
            record_peak(lambda: used_bytes(packages)) as peak,
            ThreadPoolExecutor(30) as threads,
        ):
            responses = list(threads.map(run, names))
            done = [response for response in responses if response.status == 200]
            full = [response for response in responses if response.status == 429]
            assert len(done) >= 10
            assert {response.json["stdout"] for response in done} == {"1\n"}
            assert len(full) == 30 - len(done) > 0
            assert all(int(response.headers["retry-after"]) >= 1 for response in full)
            # Refused installations succeed later, though they do not all fit into the cache.
            for name in [name for name, response in zip(names, responses, strict=True) if response.status == 429]:
                assert run(name).json["stdout"] == "1\n"
        assert 1 <= concurrent[0] <= 2
        assert peak[0] < (20 << 20) + 2 * 4 * MEGABYTE  # the cache, and two in progress
        assert quota.measure(packages).size <= 20 << 20


def test_packages_of_a_live_session_are_not_evicted(serve, attacker_on, identity, package_index):
    for i in range(12):
        package_index.add(
            f"thing-{i}", {f"thing_{i}/__init__.py": "", f"thing_{i}/late.py": os.urandom(MEGABYTE).hex()}
        )
        package_index.add(f"own-{i}", {f"own_{i}/__init__.py": "", f"own_{i}/late.py": "HERE = True"})
    settings = {"modules": "json", "max_packages_bytes": str(8 << 20)}
    with serve(identity, python_index=package_index.url, **settings) as running, attacker_on(running) as attacker:
        beginning = attacker.client.session(requirements=["own-0"])
        attacker.run("import own_1", requirements=["own-1"])
        for i in range(12):
            assert attacker.client.execute("print(1)", requirements=[f"thing-{i}"])["stdout"] == "1\n"
        assert attacker.evaluate("import own_1.late; own_1.late.HERE") == "True"
        assert attacker.client.run(beginning, "import own_0.late; own_0.late.HERE")["result"] == "True"
        # A session that installs ever more is refused at the limit, and keeps its packages.
        refused = [attacker.run("1", requirements=[f"thing-{i}"])["stderr"] for i in range(12)]
        assert refused[0] == ""
        assert "the package cache is full" in refused[-1]
        assert attacker.run("import own_1, thing_0")["status"] == "success"
        attacker.client.destroy(beginning)


@pytest.fixture
def state(identity) -> Iterator[Path]:
    """A state directory for two servers; not pytest's, which other users cannot read."""
    with tempfile.TemporaryDirectory(prefix="sandbox-test-") as name:
        if identity == "user" and os.geteuid() == 0:
            os.chown(name, 54321, 54321)
        yield Path(name)


def test_a_server_killed_during_an_installation(serve, identity, package_index, state):
    package_index.add("large", {f"{i}/zeros": b"\0" * MEGABYTE for i in range(200)})
    package_index.add("tiny-thing", {"tiny_thing.py": ""})
    settings = {"python_index": package_index.url, "modules": "json", "state": str(state)}
    with serve(identity, **settings) as running, ThreadPoolExecutor(1) as threads:
        assert running.client.execute("import tiny_thing", requirements=["tiny-thing"])["status"] == "success"
        session = running.client.session(requirements=["tiny-thing"])
        running.client.run(session, "1", requirements=["tiny-thing<2"])
        kept = used_bytes(state)
        lost = threads.submit(running.client.post, "/execute", {"code": "1", "requirements": ["large"]})
        wait_until(lambda: used_bytes(state) > kept + 20 * MEGABYTE)
        processes = descendants(running.process.pid)
        running.process.send_signal(signal.SIGKILL)
        running.process.wait()
        with pytest.raises(OSError):  # noqa: PT011 - any connection error
            lost.result()
        wait_until(lambda: not any(Path(f"/proc/{pid}/fd/0").exists() for pid in processes))
        assert list((state / "packages").glob(".*"))
    with serve(identity, **settings) as running:
        assert [path.name for path in (state / "packages").glob(".[!s]*")] == []
        assert len(list((state / "packages").glob("[!.]*"))) == 2
        assert len(list((state / "packages").glob(".session-packages-*"))) == 1
        requests = len(package_index.requests)
        assert running.client.execute("import tiny_thing", requirements=["tiny-thing"])["status"] == "success"
        assert len(package_index.requests) == requests


NAMES = ["../../outside.py", "/outside.py", "/mnt/x.py", "a/../../../outside.py", "evil-1.0.data/scripts/../../../x"]


@pytest.mark.parametrize("number", range(len(NAMES)))
def test_wheel_members_with_paths_outside(install_server, package_attacker, number):
    install_server.index.add(f"evil-{number}", {"evil.py": "", NAMES[number]: "outside"})
    package_attacker.run("1", requirements=[f"evil-{number}"])
    found = [
        path for path in install_server.running.state.rglob("*") if path.is_file() and path.read_bytes() == b"outside"
    ]
    assert all(len(path.relative_to(install_server.packages).parts) > 1 for path in found)
    assert not Path("/outside.py").exists()


KINDS = {"link": stat.S_IFLNK, "fifo": stat.S_IFIFO, "device": stat.S_IFCHR}


@pytest.mark.parametrize("kind", KINDS)
def test_wheel_members_that_are_not_files(install_server, package_attacker, kind):
    member = zipfile.ZipInfo("odd")
    member.create_system, member.external_attr = 3, (KINDS[kind] | 0o6777) << 16
    install_server.index.add(f"odd-{kind}", {"evil.py": "", member: "/etc/shadow"})
    package_attacker.run("1", requirements=[f"odd-{kind}"])
    for path in install_server.packages.rglob("*"):
        mode = path.lstat().st_mode
        assert stat.S_ISREG(mode) or stat.S_ISDIR(mode)
        assert not mode & (stat.S_ISUID | stat.S_ISGID)
    assert "root:" not in str(
        package_attacker.run("import glob; [open(p).read() for p in glob.glob('/opt/session-packages/*/odd')]")
    )


TAMPER = """
import glob, os
mine = glob.glob('/opt/session-packages/*/tiny_thing.py')
done = []
for path in [*mine, '/opt/session-packages', os.path.dirname(mine[0]), '/opt/site', '/opt/packages']:
    for attempt in (lambda: open(path, 'a'), lambda: os.unlink(path), lambda: os.chmod(path, 0o777),
                    lambda: os.rename(path, path + 'x'), lambda: open(path + '/x', 'w'),
                    lambda: os.mkdir(path + '/d'), lambda: os.link(path, '/mnt/data/l'),
                    lambda: os.symlink('/etc', path + '/s'), lambda: os.utime(path),
                    lambda: os.truncate(path, 0), lambda: os.rmdir(path)):
        try: attempt(); done.append(path)
        except OSError: pass
len(mine), done, os.listdir('/opt/packages')
"""


def test_session_packages_cannot_be_changed_from_inside(install_server, package_attacker):
    install_server.index.add("tiny-thing", {"tiny_thing.py": "ANSWER = 42"})
    package_attacker.run("1", requirements=["tiny-thing"])
    assert package_attacker.evaluate(TAMPER) == "(1, [], [])"
    assert package_attacker.run_in_sibling("import tiny_thing")["status"] == "error"
    seen = package_attacker.client.run(
        package_attacker.sibling, "import tiny_thing; tiny_thing.ANSWER", requirements=["tiny-thing"]
    )
    assert seen["result"] == "42"


BREAK_SYS_PATH = """
import os, sys
class Path(list):
    def __contains__(self, x): raise SystemError('no')
sys.path = Path(sys.path); os.environ = None
"""


def test_code_that_breaks_sys_path_affects_only_its_own_result(install_server, package_attacker):
    install_server.index.add("any-thing", {"any_thing.py": "ANSWER = 42"})
    package_attacker.run(BREAK_SYS_PATH)
    assert package_attacker.run("1", requirements=["any-thing"])["error"]["name"] == "SystemError"
    assert package_attacker.evaluate("'alive'") == "'alive'"


@pytest.mark.parametrize(
    "line", ["--index-url=http://127.0.0.1:1/", "git+ssh://git@host/x", "./x", "x @ file:///x.whl"]
)
def test_requirements_that_are_not_names_are_refused(attacker, line):
    for path in ("/execute", "/sessions", f"/sessions/{attacker.session}/execute"):
        assert attacker.client.post(path, {"code": "1", "requirements": [line]}).status == 400
