"""Attacks by packages: what they unpack to, how many there are, what their archives hold, and what is shared."""

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
class Stage:
    """A server with narrow limits, and the index that it installs from."""

    running: Any
    index: fake_package_index.Index
    packages: Path


@pytest.fixture(scope="module", params=["user", "root"])
def stage(request, serve, identities, tmp_path_factory) -> Iterator[Stage]:
    if request.param not in identities:
        pytest.skip("this needs root")
    settings = {"modules": "json", "max_install_bytes": str(LIMIT), "max_install_files": "1000"}
    with (
        fake_package_index.running(tmp_path_factory.mktemp("index")) as index,
        serve(request.param, python_index=index.url, **settings) as running,
    ):
        yield Stage(running, index, running.state / "packages")


@pytest.fixture
def inside(stage, arena_on):
    with arena_on(stage.running) as arena:
        yield arena


@contextlib.contextmanager
def looking(look) -> Iterator[list[int]]:
    """The most that was seen meanwhile, in a list of one."""
    most, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.is_set():
            most[0] = max(most[0], look())
            stop.wait(0.01)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield most
    finally:
        stop.set()
        watching.join()


def taken(directory: Path) -> int:
    """Bytes on the disk, as far as they can be counted while others work there."""
    with contextlib.suppress(TooLarge):
        return quota.measure(directory).size
    return 0


def test_a_wheel_that_unpacks_to_a_thousand_times_its_size(stage, inside):
    stage.index.add("bomb", {"bomb.py": "", "zeros": b"\0" * (600 * MEGABYTE)})
    with looking(lambda: taken(stage.packages)) as most:
        for seen in (
            inside.client.execute("print(1)", requirements=["bomb"]),
            inside.run("print(1)", requirements=["bomb"]),
        ):
            assert (seen["status"], seen["exit_code"], seen["stdout"]) == ("error", -1, "")
            assert seen["stderr"] == f"package installation failed: more than the limit of {LIMIT} bytes"
        assert inside.client.post("/sessions", {"requirements": ["bomb"]}).status == 400
    # It is one file, which the kernel itself does not let grow beyond the limit.
    assert LIMIT // 2 < most[0] < LIMIT + 8 * MEGABYTE
    assert inside.value("1 + 1") == "2"


def test_a_wheel_of_far_too_many_files(stage, inside):
    stage.index.add("crowd", {f"crowd/{i // 500}/{i}": b"x" for i in range(50_000)})
    seen = inside.client.execute("print(1)", requirements=["crowd"], timeout_seconds=50)
    assert seen["stderr"] == "package installation failed: more than the limit of 1000 files"


def test_many_installations_at_once(serve, arena_on, identity, package_index):
    names = [f"thing-{i}" for i in range(30)]
    for name in names:
        package_index.add(name, {f"{name.replace('-', '_')}.py": "", "data": os.urandom(MEGABYTE)})
    settings = {"max_installs": "2", "install_queue": "8", "max_concurrent": "40", "max_packages_bytes": str(20 << 20)}
    with serve(identity, python_index=package_index.url, modules="json", **settings) as running:
        packages = running.state / "packages"

        def run(name: str):
            return running.client.post("/execute", {"code": "print(1)", "requirements": [name], "timeout_seconds": 50})

        with (
            arena_on(running),
            looking(lambda: len(fake_package_index.installers(running.process.pid))) as at_once,
            looking(lambda: taken(packages)) as most,
            ThreadPoolExecutor(30) as threads,
        ):
            answers = list(threads.map(run, names))
            done = [answer for answer in answers if answer.status == 200]
            full = [answer for answer in answers if answer.status == 429]
            assert len(done) >= 10
            assert {answer.json["stdout"] for answer in done} == {"1\n"}
            assert len(full) == 30 - len(done) > 0
            assert all(int(answer.headers["retry-after"]) >= 1 for answer in full)
            # Those that were refused succeed later, though they do not all fit among what is kept.
            for name in [name for name, answer in zip(names, answers, strict=True) if answer.status == 429]:
                assert run(name).json["stdout"] == "1\n"
        assert 1 <= at_once[0] <= 2
        assert most[0] < (20 << 20) + 2 * 4 * MEGABYTE  # what is kept, and two on their way
        assert quota.measure(packages).size <= 20 << 20


def test_what_a_live_session_uses_is_not_driven_out(serve, arena_on, identity, package_index):
    for i in range(12):
        package_index.add(
            f"thing-{i}", {f"thing_{i}/__init__.py": "", f"thing_{i}/late.py": os.urandom(MEGABYTE).hex()}
        )
        package_index.add(f"own-{i}", {f"own_{i}/__init__.py": "", f"own_{i}/late.py": "HERE = True"})
    settings = {"modules": "json", "max_packages_bytes": str(8 << 20)}
    with serve(identity, python_index=package_index.url, **settings) as running, arena_on(running) as arena:
        beginning = arena.client.session(requirements=["own-0"])
        arena.run("import own_1", requirements=["own-1"])
        for i in range(12):
            assert arena.client.execute("print(1)", requirements=[f"thing-{i}"])["stdout"] == "1\n"
        assert arena.value("import own_1.late; own_1.late.HERE") == "True"
        assert arena.client.run(beginning, "import own_0.late; own_0.late.HERE")["result"] == "True"
        # A session that takes ever more is told so at the limit, and keeps what it has.
        refused = [arena.run("1", requirements=[f"thing-{i}"])["stderr"] for i in range(12)]
        assert refused[0] == ""
        assert "no room among the server's packages" in refused[-1]
        assert arena.run("import own_1, thing_0")["status"] == "success"
        arena.client.destroy(beginning)


@pytest.fixture
def state(identity) -> Iterator[Path]:
    """A directory that outlives a server; not one of pytest's own, which others cannot reach."""
    with tempfile.TemporaryDirectory(prefix="sandbox-test-") as name:
        if identity == "user" and os.geteuid() == 0:
            os.chown(name, 54321, 54321)
        yield Path(name)


def test_a_server_killed_in_the_middle_of_an_installation(serve, identity, package_index, state):
    package_index.add("large", {f"{i}/zeros": b"\0" * MEGABYTE for i in range(200)})
    package_index.add("tiny-thing", {"tiny_thing.py": ""})
    settings = {"python_index": package_index.url, "modules": "json", "state": str(state)}
    with serve(identity, **settings) as running, ThreadPoolExecutor(1) as threads:
        assert running.client.execute("import tiny_thing", requirements=["tiny-thing"])["status"] == "success"
        session = running.client.session(requirements=["tiny-thing"])
        running.client.run(session, "1", requirements=["tiny-thing<2"])
        kept = taken(state)
        lost = threads.submit(running.client.post, "/execute", {"code": "1", "requirements": ["large"]})
        wait_until(lambda: taken(state) > kept + 20 * MEGABYTE)
        family = descendants(running.process.pid)
        running.process.send_signal(signal.SIGKILL)
        running.process.wait()
        with pytest.raises(OSError):  # noqa: PT011 - whatever the connection dies of
            lost.result()
        wait_until(lambda: not any(Path(f"/proc/{pid}/fd/0").exists() for pid in family))
        assert list((state / "packages").glob(".*"))
    with serve(identity, **settings) as running:
        assert [path.name for path in (state / "packages").glob(".[!a]*")] == []
        assert len(list((state / "packages").glob("[!.]*"))) == 2
        assert len(list((state / "packages").glob(".annexes-*"))) == 1
        asked = len(package_index.asked)
        assert running.client.execute("import tiny_thing", requirements=["tiny-thing"])["status"] == "success"
        assert len(package_index.asked) == asked


NAMES = ["../../outside.py", "/outside.py", "/mnt/x.py", "a/../../../outside.py", "evil-1.0.data/scripts/../../../x"]


@pytest.mark.parametrize("number", range(len(NAMES)))
def test_members_of_a_wheel_that_lead_outside(stage, inside, number):
    stage.index.add(f"evil-{number}", {"evil.py": "", NAMES[number]: "outside"})
    inside.run("1", requirements=[f"evil-{number}"])
    found = [path for path in stage.running.state.rglob("*") if path.is_file() and path.read_bytes() == b"outside"]
    assert all(len(path.relative_to(stage.packages).parts) > 1 for path in found)
    assert not Path("/outside.py").exists()


KINDS = {"link": stat.S_IFLNK, "fifo": stat.S_IFIFO, "device": stat.S_IFCHR}


@pytest.mark.parametrize("kind", KINDS)
def test_members_of_a_wheel_that_are_no_files(stage, inside, kind):
    member = zipfile.ZipInfo("odd")
    member.create_system, member.external_attr = 3, (KINDS[kind] | 0o6777) << 16
    stage.index.add(f"odd-{kind}", {"evil.py": "", member: "/etc/shadow"})
    inside.run("1", requirements=[f"odd-{kind}"])
    for path in stage.packages.rglob("*"):
        mode = path.lstat().st_mode
        assert stat.S_ISREG(mode) or stat.S_ISDIR(mode)
        assert not mode & (stat.S_ISUID | stat.S_ISGID)
    assert "root:" not in str(inside.run("import glob; [open(p).read() for p in glob.glob('/opt/annex/*/odd')]"))


SPOIL = """
import glob, os
mine = glob.glob('/opt/annex/*/tiny_thing.py')
done = []
for place in [*mine, '/opt/annex', os.path.dirname(mine[0]), '/opt/site', '/opt/packages']:
    for attempt in (lambda: open(place, 'a'), lambda: os.unlink(place), lambda: os.chmod(place, 0o777),
                    lambda: os.rename(place, place + 'x'), lambda: open(place + '/x', 'w'),
                    lambda: os.mkdir(place + '/d'), lambda: os.link(place, '/mnt/data/l'),
                    lambda: os.symlink('/etc', place + '/s'), lambda: os.utime(place),
                    lambda: os.truncate(place, 0), lambda: os.rmdir(place)):
        try: attempt(); done.append(place)
        except OSError: pass
len(mine), done, os.listdir('/opt/packages')
"""


def test_what_is_put_beside_a_container_cannot_be_changed_from_inside(stage, inside):
    stage.index.add("tiny-thing", {"tiny_thing.py": "ANSWER = 42"})
    inside.run("1", requirements=["tiny-thing"])
    assert inside.value(SPOIL) == "(1, [], [])"
    assert inside.run_beside("import tiny_thing")["status"] == "error"
    seen = inside.client.run(inside.sibling, "import tiny_thing; tiny_thing.ANSWER", requirements=["tiny-thing"])
    assert seen["result"] == "42"


BREAK = """
import os, sys
class Path(list):
    def __contains__(self, x): raise SystemError('no')
sys.path = Path(sys.path); os.environ = None
"""


def test_code_that_breaks_its_own_path_costs_its_own_result(stage, inside):
    stage.index.add("any-thing", {"any_thing.py": "ANSWER = 42"})
    inside.run(BREAK)
    assert inside.run("1", requirements=["any-thing"])["error"]["name"] == "SystemError"
    assert inside.value("'alive'") == "'alive'"


@pytest.mark.parametrize(
    "line", ["--index-url=http://127.0.0.1:1/", "git+ssh://git@host/x", "./x", "x @ file:///x.whl"]
)
def test_requirements_that_are_no_names(arena, line):
    for path in ("/execute", "/sessions", f"/sessions/{arena.session}/execute"):
        assert arena.client.post(path, {"code": "1", "requirements": [line]}).status == 400
