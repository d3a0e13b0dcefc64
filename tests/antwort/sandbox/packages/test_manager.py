"""Packages: what may be asked for, and a real installation from an index on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from fake_package_index import installers
from waiting import soon

from antwort.net.errors import AtCapacity
from antwort.sandbox import Pool, probe
from antwort.sandbox.errors import BadRequirement
from antwort.sandbox.files.quota import Quota
from antwort.sandbox.packages import cache as shelf
from antwort.sandbox.packages import manager as packages
from antwort.sandbox.packages.installer import InstallFailed
from antwort.sandbox.packages.manager import Allowance, Packages, check
from antwort.sandbox.pool.preload import here

OPTIONS = ["--index-url=http://x", "-r x", "x==1 --hash=a", "a\n--pre"]
ARCHIVES = ["x.whl", "x.tar.gz", "X.ZIP"]
PLACES = ["git+ssh://g@h/x", "./x", "/x", "../x", "x @ http://h/x.whl", "file:x"]
OTHERS = ["x; python_version > '3'", "a b", "", "é"]


@pytest.mark.parametrize("line", [*OPTIONS, *PLACES, *ARCHIVES, *OTHERS])
def test_what_is_not_a_name_with_versions_is_refused(line):
    with pytest.raises(BadRequirement):
        check([line])


def test_names_with_versions_and_extras_come_in_one_order():
    assert check(["rich>=13,<15", "a[b]==1.0", "rich>=13,<15"]) == ["a[b]==1.0", "rich<15,>=13"]


@pytest.fixture
def index(package_index):
    package_index.add("tiny-thing", {"tiny_thing.py": "ANSWER = 42\n"})
    return package_index


def test_a_package_is_installed_cached_and_hidden_from_others(serve, identity, index):
    with serve(identity, python_index=index.url, modules="json") as running:
        client = running.client
        code = "import tiny_thing, os; print(tiny_thing.ANSWER, tiny_thing.__file__, os.listdir('/opt/packages'))"
        for _ in range(2):
            seen = client.execute(code, requirements=["tiny-thing==1.0"])
            assert seen["stdout"] == "42 /opt/site/tiny_thing.py []\n", seen
        assert len(list((running.state / "packages").glob("[!.]*"))) == 1
        assert "No module named" in client.execute("import tiny_thing")["stderr"]
        session = client.session(requirements=["tiny-thing"])
        assert client.run(session, "import tiny_thing; tiny_thing.ANSWER")["result"] == "42"
        assert client.run(session, "open('/opt/site/tiny_thing.py', 'a')")["status"] == "error"
        failed = client.execute("1", requirements=["tiny-thing==2.0"])
        assert failed["stderr"].startswith("package installation failed: ")
        assert str(running.state) not in failed["stderr"]


def test_who_has_more_time_does_not_fail_with_who_has_less(serve, index):
    """Both wait for one installation, which the index holds up for longer than the first can wait."""
    with serve("user", python_index=index.held, modules="json") as running, ThreadPoolExecutor(2) as threads:
        wanted = {"code": "import tiny_thing", "requirements": ["tiny-thing"]}
        first = threads.submit(running.client.execute, timeout_seconds=1, **wanted)
        second = threads.submit(running.client.execute, timeout_seconds=30, **wanted)
        assert first.result()["exit_code"] == -1
        index.going_on.set()
        assert second.result()["status"] == "success"
        assert index.asked.count("/held/tiny-thing/") == 1


def test_what_a_killed_server_left_half_installed_is_removed_and_what_another_is_at_is_not(tmp_path):
    for name in (".left", ".held", "installed"):
        (tmp_path / name / "out").mkdir(parents=True)
    with shelf.held(tmp_path / ".held"):
        packages.Packages(tmp_path, probe(), here(()), index=None)
        names = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".annexes-")}
        assert names == {".held", "installed"}


# ── Within bounds ────────────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def store(directory, index: str, host=None, **allowance) -> AsyncGenerator[Packages]:
    found = Packages(directory, host or probe(), here(()), index=index, allowance=Allowance(**allowance))
    async with contextlib.aclosing(found):
        yield found
    assert installers(os.getpid()) == []
    assert [path.name for path in directory.iterdir() if path.name.startswith(".")] == []


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def shelf_directory(tmp_path_factory):
    return tmp_path_factory.mktemp("shelf")


BOMBS = {
    "one large file": ({"large": b"\0" * (40 << 20)}, "16777216 bytes"),
    "large files": ({f"{i}/large": b"\0" * (1 << 20) for i in range(40)}, "16777216 bytes"),
    "many files": ({f"m/{i // 100}/{i}": b"" for i in range(4_000)}, "2000 files"),
    "many directories": ({f"m/{i}/{i}/{i}": b"" for i in range(1_500)}, "2000 files"),
    "a deep directory": ({"d/" * 1_200 + "f": b""}, "64 directories inside each other"),
    "a long path": ({("d" * 200 + "/") * 10 + "f": b""}, "a path longer than the limit of 1024 bytes"),
}


@pytest.mark.anyio
@pytest.mark.parametrize("bomb", BOMBS)
async def test_what_is_over_the_quota_is_ended_and_leaves_nothing(package_index, shelf_directory, bomb):
    files, limit = BOMBS[bomb]
    package_index.add("bomb", files)
    async with store(shelf_directory, package_index.url, quota=Quota(16 << 20, 2_000)) as found:
        with pytest.raises(InstallFailed, match=f"^package installation failed: .*{limit}"):
            await found.install(["bomb"], seconds=60)
    assert list(shelf_directory.iterdir()) == []


@pytest.mark.anyio
async def test_a_bomb_among_what_a_package_needs_is_one_too(package_index, shelf_directory):
    package_index.add("bomb", {f"{i}/large": b"\0" * (1 << 20) for i in range(40)})
    package_index.add("innocent", {"innocent.py": ""}, requires=("bomb",))
    async with store(shelf_directory, package_index.url, quota=Quota(16 << 20, 2_000)) as found:
        with pytest.raises(InstallFailed, match="16777216 bytes"):
            await found.install(["innocent"], seconds=60)


async def until_asked(index, pages: int) -> list[str]:
    """Wait until the index was asked for so many packages; then a moment more, for one too many."""

    def asked() -> list[str]:
        return [path for path in index.asked if path.endswith("/")]

    await soon(lambda: len(asked()) >= pages)
    await asyncio.sleep(0.5)
    return asked()


@pytest.mark.anyio
async def test_only_so_many_are_installed_at_once(package_index, shelf_directory):
    names = [f"thing-{i}" for i in range(6)]
    for name in names:
        package_index.add(name, {f"{name.replace('-', '_')}.py": ""})
    async with store(shelf_directory, package_index.held, at_once=2, queue=4) as found:
        tasks = [asyncio.create_task(found.install([name], seconds=60)) for name in names]
        assert sorted(await until_asked(package_index, 2)) == ["/held/thing-0/", "/held/thing-1/"]
        with pytest.raises(AtCapacity):
            await found.install(["thing-7"], seconds=60)
        package_index.going_on.set()
        leases = await asyncio.gather(*tasks)
        assert len({lease.path for lease in leases}) == 6


@pytest.mark.anyio
async def test_what_nobody_waits_for_any_more_is_ended(index, shelf_directory):
    async with store(shelf_directory, index.held, at_once=1) as found:
        waiting = [asyncio.create_task(found.install(["tiny-thing"], seconds=60)) for _ in range(2)]
        await until_asked(index, 1)
        waiting[0].cancel()
        await asyncio.sleep(0.2)
        assert len(installers(os.getpid())) == 1  # the other still waits
        waiting[1].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await soon(lambda: installers(os.getpid()) == [])
        index.going_on.set()
        await found.install(["tiny-thing"], seconds=60)  # its place is free again


@pytest.mark.anyio
async def test_what_is_leased_stays_and_what_is_not_makes_room(package_index, shelf_directory):
    for name in ("first", "second"):
        package_index.add(name, {f"{name}.bin": b"x" * (2 << 20)})
    async with store(shelf_directory, package_index.url, shelf_bytes=3 << 20) as found:
        lease = await found.install(["first"], seconds=60)
        with pytest.raises(InstallFailed, match="no room among the server's packages"):
            await found.install(["second"], seconds=60)
        assert lease.path.is_dir()
        lease.release()
        await found.install(["second"], seconds=60)
        assert not lease.path.exists()


@pytest.mark.anyio
@pytest.mark.parametrize("walls", [{"namespaces", "landlock", "seccomp"}, {"landlock", "seccomp"}, set()])
async def test_a_running_container_is_given_packages(index, shelf_directory, walls):
    host = replace(probe(), walls=frozenset(walls), groups=None)
    async with store(shelf_directory, index.url, host) as found:
        annex = found.annex()
        async with Pool(host, packages=shelf_directory, modules=(), spares=False) as pool:
            container = await pool.create(annex=annex.path)
            await container.execute("kept = 1", timeout=5)
            assert (await container.execute("import tiny_thing", timeout=5)).error
            name = await found.add(annex, ["tiny-thing"], seconds=60)
            outcome = await container.execute("import tiny_thing; kept, tiny_thing.ANSWER", timeout=5, packages=name)
            assert outcome.echo == "(1, 42)", outcome
            refused = await container.execute("open(tiny_thing.__file__, 'a')", timeout=5)
            assert refused.error or "namespaces" not in walls  # below the host's own /tmp nothing else stops it
        found.retire(annex)
