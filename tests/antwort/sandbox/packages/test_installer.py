"""The installer runs behind the server, in its own group where there are any, and is gone when nobody waits for it."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest
from fake_package_index import installers
from waiting import wait_until_async

from antwort.sandbox import probe
from antwort.sandbox.files.quota import Quota
from antwort.sandbox.packages.installer import Installer, InstallFailed
from antwort.sandbox.pool.preload import here
from antwort.sandbox.threads import DedicatedThreads

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(params=["counted", "watched"])
def host(request):
    host = probe()
    if request.param == "watched":
        return replace(host, groups=None)
    if host.groups is None:
        pytest.skip("no control groups to be had here")
    return host.claimed()


def installer(host, index: str) -> Installer:
    return Installer(
        host, here(()), DedicatedThreads(2, "test"), index=index, builds=False, limit=Quota(1 << 24, 1_000)
    )


def is_counted(pid: int) -> bool:
    return "antwort-" in Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8")


def groups() -> list[Path]:
    return list(Path("/sys/fs/cgroup").glob(f"**/antwort-{os.getpid()}-*"))


async def test_it_answers_what_it_took(host, package_index, tmp_path_factory):
    package_index.add("thing", {"thing.py": "x" * 50_000})
    out = tmp_path_factory.mktemp("place") / "out"
    usage = await installer(host, package_index.url).fill(out, ["thing"])
    assert 50_000 < usage.size < 100_000
    assert (out / "thing.py").exists()
    assert not (out / ".tmp").exists()
    assert groups() == []


async def test_it_runs_behind_the_server_and_is_counted(host, package_index, tmp_path_factory):
    package_index.add("thing", {"thing.py": ""})
    out = tmp_path_factory.mktemp("place") / "out"
    filling = asyncio.create_task(installer(host, package_index.held).fill(out, ["thing"]))
    await wait_until_async(lambda: package_index.asked)
    (uv,) = installers(os.getpid())
    assert os.getpriority(os.PRIO_PROCESS, uv) > os.getpriority(os.PRIO_PROCESS, 0)
    assert is_counted(uv) == (host.groups is not None)
    filling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await filling
    assert installers(os.getpid()) == []
    assert groups() == []


async def test_its_words_are_told_and_bounded(host, package_index, tmp_path_factory):
    for name in ("a", "b"):
        package_index.add(name, {f"{name}.py": ""}, requires=(f"no-such-{'x' * 3_000}",))
    out = tmp_path_factory.mktemp("place") / "out"
    with pytest.raises(InstallFailed) as failure:
        await installer(host, package_index.url).fill(out, ["a", "b"])
    assert str(failure.value).startswith("package installation failed: ")
    assert len(str(failure.value)) < 2_100
