"""Installer: niceness, cgroup, cancellation, bounded error messages."""

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
from antwort.sandbox.pool.preload import current_stack
from antwort.sandbox.threads import DedicatedThreads

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(params=["cgroup", "no cgroup"])
def host(request):
    host = probe()
    if request.param == "no cgroup":
        return replace(host, cgroups=None)
    if host.cgroups is None:
        pytest.skip("this host has no cgroups")
    return host.claim_cgroups()


def installer(host, index: str) -> Installer:
    return Installer(
        host, current_stack(()), DedicatedThreads(2, "test"), index=index, builds=False, quota=Quota(1 << 24, 1_000)
    )


def has_cgroup(pid: int) -> bool:
    return "antwort-" in Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8")


def cgroups() -> list[Path]:
    return list(Path("/sys/fs/cgroup").glob(f"**/antwort-{os.getpid()}-*"))


async def test_install_returns_the_disk_usage(host, package_index, tmp_path_factory):
    package_index.add("thing", {"thing.py": "x" * 50_000})
    out = tmp_path_factory.mktemp("target") / "out"
    usage = await installer(host, package_index.url).install(out, ["thing"])
    assert 50_000 < usage.size < 100_000
    assert (out / "thing.py").exists()
    assert not (out / ".tmp").exists()
    assert cgroups() == []


async def test_the_installer_is_niced_in_a_cgroup_and_killed_on_cancellation(host, package_index, tmp_path_factory):
    package_index.add("thing", {"thing.py": ""})
    out = tmp_path_factory.mktemp("target") / "out"
    installing = asyncio.create_task(installer(host, package_index.blocked_url).install(out, ["thing"]))
    await wait_until_async(lambda: package_index.requests)
    (uv,) = installers(os.getpid())
    assert os.getpriority(os.PRIO_PROCESS, uv) > os.getpriority(os.PRIO_PROCESS, 0)
    assert has_cgroup(uv) == (host.cgroups is not None)
    installing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await installing
    assert installers(os.getpid()) == []
    assert cgroups() == []


async def test_installer_errors_are_reported_and_truncated(host, package_index, tmp_path_factory):
    for name in ("a", "b"):
        package_index.add(name, {f"{name}.py": ""}, requires=(f"no-such-{'x' * 3_000}",))
    out = tmp_path_factory.mktemp("target") / "out"
    with pytest.raises(InstallFailed) as failure:
        await installer(host, package_index.url).install(out, ["a", "b"])
    assert str(failure.value).startswith("package installation failed: ")
    assert len(str(failure.value)) < 2_100
