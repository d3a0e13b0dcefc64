"""PackageManager: installations from a package index on loopback, quotas, leases, session packages."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from fake_package_index import installers
from waiting import wait_until_async

from antwort.net.errors import QueueFull
from antwort.sandbox import Pool, probe
from antwort.sandbox.files.quota import Quota
from antwort.sandbox.packages.cache import lock_directory
from antwort.sandbox.packages.installer import InstallFailed
from antwort.sandbox.packages.manager import PackageLimits, PackageManager
from antwort.sandbox.pool.preload import current_stack


@pytest.fixture
def index(package_index):
    package_index.add("tiny-thing", {"tiny_thing.py": "ANSWER = 42\n"})
    return package_index


def test_a_package_is_installed_cached_and_not_visible_to_others(serve, identity, index):
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


def test_a_caller_with_a_longer_timeout_survives_one_with_a_shorter(serve, index):
    """Both wait for one installation, which takes longer than the first caller waits."""
    with serve("user", python_index=index.blocked_url, modules="json") as running, ThreadPoolExecutor(2) as threads:
        wanted = {"code": "import tiny_thing", "requirements": ["tiny-thing"]}
        first = threads.submit(running.client.execute, timeout_seconds=1, **wanted)
        second = threads.submit(running.client.execute, timeout_seconds=30, **wanted)
        assert first.result()["exit_code"] == -1
        index.unblock.set()
        assert second.result()["status"] == "success"
        assert index.requests.count("/blocked/tiny-thing/") == 1


def test_unfinished_installations_of_killed_servers_are_removed_and_those_in_progress_are_not(tmp_path):
    for name in (".leftover", ".locked", "installed"):
        (tmp_path / name / "out").mkdir(parents=True)
    with lock_directory(tmp_path / ".locked"):
        PackageManager(tmp_path, probe(), current_stack(()), index=None)
        names = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".session-packages-")}
        assert names == {".locked", "installed"}


# ── Limits ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def open_manager(directory, index: str, host=None, **limits) -> AsyncGenerator[PackageManager]:
    manager = PackageManager(directory, host or probe(), current_stack(()), index=index, limits=PackageLimits(**limits))
    async with contextlib.aclosing(manager):
        yield manager
    assert installers(os.getpid()) == []
    assert [path.name for path in directory.iterdir() if path.name.startswith(".")] == []


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def cache_directory(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


BOMBS = {
    "one large file": ({"large": b"\0" * (40 << 20)}, "16777216 bytes"),
    "large files": ({f"{i}/large": b"\0" * (1 << 20) for i in range(40)}, "16777216 bytes"),
    "many files": ({f"m/{i // 100}/{i}": b"" for i in range(4_000)}, "2000 files"),
    "many directories": ({f"m/{i}/{i}/{i}": b"" for i in range(1_500)}, "2000 files"),
    "a deep directory": ({"d/" * 1_200 + "f": b""}, "64 nested directories"),
    "a long path": ({("d" * 200 + "/") * 10 + "f": b""}, "a path longer than the limit of 1024 bytes"),
}


@pytest.mark.anyio
@pytest.mark.parametrize("bomb", BOMBS)
async def test_an_installation_over_the_quota_is_killed_and_removed(package_index, cache_directory, bomb):
    files, limit = BOMBS[bomb]
    package_index.add("bomb", files)
    async with open_manager(cache_directory, package_index.url, quota=Quota(16 << 20, 2_000)) as manager:
        with pytest.raises(InstallFailed, match=f"^package installation failed: .*{limit}"):
            await manager.install(["bomb"], seconds=60)
    assert list(cache_directory.iterdir()) == []


@pytest.mark.anyio
async def test_a_dependency_over_the_quota_is_refused(package_index, cache_directory):
    package_index.add("bomb", {f"{i}/large": b"\0" * (1 << 20) for i in range(40)})
    package_index.add("innocent", {"innocent.py": ""}, requires=("bomb",))
    async with open_manager(cache_directory, package_index.url, quota=Quota(16 << 20, 2_000)) as manager:
        with pytest.raises(InstallFailed, match="16777216 bytes"):
            await manager.install(["innocent"], seconds=60)


async def until_requested(index, pages: int) -> list[str]:
    """Wait until this many packages were requested from the index, and half a second for one more."""

    def requested() -> list[str]:
        return [path for path in index.requests if path.endswith("/")]

    await wait_until_async(lambda: len(requested()) >= pages)
    await asyncio.sleep(0.5)
    return requested()


@pytest.mark.anyio
async def test_concurrent_installations_are_limited(package_index, cache_directory):
    names = [f"thing-{i}" for i in range(6)]
    for name in names:
        package_index.add(name, {f"{name.replace('-', '_')}.py": ""})
    async with open_manager(cache_directory, package_index.blocked_url, max_concurrent=2, max_queued=4) as manager:
        tasks = [asyncio.create_task(manager.install([name], seconds=60)) for name in names]
        assert sorted(await until_requested(package_index, 2)) == ["/blocked/thing-0/", "/blocked/thing-1/"]
        with pytest.raises(QueueFull):
            await manager.install(["thing-7"], seconds=60)
        package_index.unblock.set()
        leases = await asyncio.gather(*tasks)
        assert len({lease.path for lease in leases}) == 6


@pytest.mark.anyio
async def test_an_installation_without_waiting_callers_is_cancelled(index, cache_directory):
    async with open_manager(cache_directory, index.blocked_url, max_concurrent=1) as manager:
        waiting = [asyncio.create_task(manager.install(["tiny-thing"], seconds=60)) for _ in range(2)]
        await until_requested(index, 1)
        waiting[0].cancel()
        await asyncio.sleep(0.2)
        assert len(installers(os.getpid())) == 1  # the other still waits
        waiting[1].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await wait_until_async(lambda: installers(os.getpid()) == [])
        index.unblock.set()
        await manager.install(["tiny-thing"], seconds=60)  # the semaphore is free again


@pytest.mark.anyio
async def test_leased_sets_stay_and_others_are_evicted(package_index, cache_directory):
    for name in ("first", "second"):
        package_index.add(name, {f"{name}.bin": b"x" * (2 << 20)})
    async with open_manager(cache_directory, package_index.url, cache_bytes=3 << 20) as manager:
        lease = await manager.install(["first"], seconds=60)
        with pytest.raises(InstallFailed, match="the package cache is full"):
            await manager.install(["second"], seconds=60)
        assert lease.path.is_dir()
        lease.release()
        await manager.install(["second"], seconds=60)
        assert not lease.path.exists()


@pytest.mark.anyio
@pytest.mark.parametrize("layers", [{"namespaces", "landlock", "seccomp"}, {"landlock", "seccomp"}, set()])
async def test_packages_are_added_to_a_running_container(index, cache_directory, layers):
    host = replace(probe(), layers=frozenset(layers), cgroups=None)
    async with open_manager(cache_directory, index.url, host) as manager:
        session_packages = manager.open_session_packages()
        async with Pool(host, packages=cache_directory, modules=(), prefork=False) as pool:
            container = await pool.create(session_packages=session_packages.path)
            await container.execute("kept = 1", timeout=5)
            assert (await container.execute("import tiny_thing", timeout=5)).error
            name = await manager.add_to_session(session_packages, ["tiny-thing"], seconds=60)
            reply = await container.execute("import tiny_thing; kept, tiny_thing.ANSWER", timeout=5, packages=name)
            assert reply.result == "(1, 42)", reply
            refused = await container.execute("open(tiny_thing.__file__, 'a')", timeout=5)
            assert refused.error or "namespaces" not in layers  # without namespaces nothing else stops it
        manager.close_session_packages(session_packages)
