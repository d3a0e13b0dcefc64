"""Cgroups: the limits that are written, and, in a real v2 hierarchy, which cgroups are claimed."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from antwort.sandbox import Pool, probe
from antwort.sandbox.host import cgroups
from antwort.sandbox.host.cgroups import CgroupsUnavailable, detect
from antwort.sandbox.limits import ContainerLimits

USER = 54321
ROOT = Path(__file__).parents[4]
DELEGATED = Path(__file__).parents[1] / "delegated.py"
FILES = ("memory.max", "memory.swap.max", "memory.oom.group", "pids.max", "cpu.max")

PRELUDE = """
import os, subprocess, sys
from pathlib import Path
from antwort.sandbox.host import cgroups

root = Path("/sys/fs/cgroup")
own = root / Path("/proc/self/cgroup").read_text().rpartition("0::/")[2].strip()
leaf = own / cgroups.LEAF
pids = lambda cgroup: {int(pid) for pid in (cgroup / "cgroup.procs").read_text().split()}
children = lambda: [path.name for path in own.iterdir() if path.is_dir()]

class Manager(cgroups.CgroupV2):
    required = frozenset(os.environ["REQUIRED"].split())  # what is left where v1 has taken memory and pids
    optional = frozenset()

def refusal(top_pid=None):
    before = pids(own)
    try:
        Manager.detect(root, top_pid=top_pid or os.getpid())
    except cgroups.CgroupsUnavailable as error:
        assert (pids(own), children()) == (before, []), "no process may have been moved"
        return str(error)
    raise AssertionError("it was accepted")
"""


def delegated(code: str, *how: str, uid: int = USER) -> str:
    """The output of code that runs in its own cgroup."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount the v2 hierarchy and create a cgroup in it")
    command = [sys.executable, str(DELEGATED), ",".join(how), str(uid), PRELUDE + textwrap.dedent(code)]
    seen = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if seen.returncode == 77:
        pytest.skip("cgroups v1 has taken every controller of this kernel")
    assert seen.returncode == 0, seen.stderr
    return seen.stdout


USE = """
    manager = Manager.detect(root, top_pid=os.getpid())
    assert (manager.must_move, pids(own), children()) == (True, {os.getpid()}, []), "detection moves no process"
    try:
        manager.create([])
    except OSError as error:
        assert "not claimed" in str(error)
    assert children() == [], "nothing is left of the failed creation"
    manager.claim()
    assert (manager.must_move, pids(own), pids(leaf)) == (False, set(), {os.getpid()})
    assert set((own / "cgroup.subtree_control").read_text().split()) == Manager.required
    with subprocess.Popen(["sleep", "60"]) as child:
        cgroup = manager.create([child.pid])
        (name,) = [name for name in children() if name != cgroups.LEAF]
        assert pids(own / name) == {child.pid}
        assert not cgroup.out_of_memory()
        child.kill()
    cgroup.release()
    again = Manager.detect(root, top_pid=os.getpid())  # like a server that is restarted in the leaf
    again.claim()
    again.create([]).release()
    (own / "antwort-1234567-0123").mkdir()  # left by a killed server
    manager.sweep()
    print(children())
"""


def test_a_cgroup_owned_by_the_user_is_claimed():
    assert delegated(USE, "owned") == "['antwort-server']\n"


def test_a_cgroup_delegated_to_root_is_claimed():
    assert delegated(USE, "marked", uid=0) == "['antwort-server']\n"


@pytest.mark.parametrize(
    "how, uid, reason",
    [
        ((), 0, "was not delegated to it"),
        ((), USER, "is not writable"),
        (("owned", "shared"), USER, "has 1 other processes in it"),
        (("marked", "shared"), 0, "has 1 other processes in it"),
    ],
    ids=["root, not delegated", "another user's", "user, shared", "root, shared"],
)
def test_other_cgroups_are_refused_and_left_unchanged(how, uid, reason):
    seen = delegated("print(refusal())", *how, uid=uid)
    assert reason in seen
    assert "Delegate=yes" in seen


def test_a_cgroup_without_the_required_controllers_is_refused():
    code = "Manager.required = frozenset({'memory', 'surely-none'})\nprint(refusal())"
    assert "memory and surely-none are not enabled" in delegated(code, "owned")


def test_with_top_pid_the_parent_is_not_foreign():
    code = """
        if os.fork() == 0:
            assert "1 other processes" in refusal()
            Manager.detect(root, top_pid=os.getppid()).claim()
            assert pids(leaf) == {os.getpid(), os.getppid()}
            os._exit(0)
        sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
    """
    delegated(code, "owned")


def test_a_leaf_made_by_systemd_in_a_delegated_cgroup_is_used():
    code = """
        sub = own / "server"
        sub.mkdir()
        (sub / "cgroup.procs").write_text("0")
        manager = Manager.detect(root, top_pid=os.getpid())
        assert not manager.must_move
        manager.claim()
        manager.create([]).release()
        print(children())
    """
    assert delegated(code, "owned", "marked") == "['server']\n"


def test_doctor_moves_no_process():
    code = """
        seen = subprocess.run([sys.executable, "-m", "antwort", "doctor"], capture_output=True, text=True, cwd="/tmp")
        assert seen.returncode == 0, seen.stdout + seen.stderr
        print(pids(own) == {os.getpid()}, children())
    """
    assert delegated(code, "marked", uid=0) == "True []\n"


def test_v2_memory_limit_ends_a_container_with_oom():
    code = """
        if not cgroups.CgroupV2.required <= Manager.required:
            print("none")
            sys.exit()
        import asyncio
        from dataclasses import replace
        from antwort.sandbox import ContainerLimits, Pool, probe

        async def main():
            host = replace(probe(), cgroups=cgroups.detect())
            async with Pool(host, modules=(), prefork=False) as pool:
                container = await pool.create(ContainerLimits(memory_bytes=128 << 20))
                reply = await container.execute("x = bytearray(b'x') * (300 << 20)", timeout=30)
                print(reply.reason)
                await container.end("over")
        asyncio.run(main())
    """
    seen = delegated(code, "marked", uid=0)
    if seen == "none\n":
        pytest.skip("cgroups v1 has taken the memory controller of this kernel")
    assert seen == "oom\n"


SPIN = """
import os, time
started = time.monotonic()
child = os.fork()
while time.monotonic() - started < 2: pass
if child == 0: os._exit(0)
os.wait()
used = os.times()
print(sum(used[:4]) - before, time.monotonic() - started)
"""


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_cpu_time_is_limited():
    host = probe()
    if host.cgroups is None:
        pytest.skip(f"this host has no cgroups: {host.no_cgroups_reason}")
    async with Pool(host, modules=(), prefork=False) as pool:
        container = await pool.create(ContainerLimits(cpus=0.2))
        cgroup = next(iter(cgroups_with(container.pids()[-1], ("cpu.cfs_quota_us", "cpu.max"))), None)
        if cgroup is None:
            pytest.skip("the cpu controller is not available")
        await container.execute("import os; before = sum(os.times()[:4])", timeout=30)
        before = throttled(cgroup)
        reply = await container.execute(SPIN, timeout=60)
        used, wall = map(float, reply.stdout.split())
        assert throttled(cgroup) - before >= 5  # of about 20 periods, with two processes that would use all of each
        assert 0 < used < 1.5 * 0.2 * wall
        await container.end("over")


def cgroups_with(pid: int, files: tuple[str, ...]) -> list[Path]:
    """Cgroups created here that contain this process and have one of these files."""
    found = []
    for directory, _, names in os.walk(cgroups.ROOT):
        if Path(directory).name.startswith(f"{cgroups.PREFIX}{os.getpid()}-") and set(files) & set(names):
            members = Path(directory, "cgroup.procs").read_text(encoding="ascii").split()
            found += [Path(directory)] if str(pid) in members else []
    return found


def throttled(cgroup: Path) -> int:
    """The number of throttled periods."""
    words = (cgroup / "cpu.stat").read_text(encoding="ascii").split()
    return int(words[words.index("nr_throttled") + 1])


@pytest.fixture
def cgroup(tmp_path):
    for name in FILES:
        (tmp_path / name).touch()
    return cgroups._CgroupDirectories([tmp_path], tmp_path / "memory.events", cgroups._v2_files)


def test_v2_limits_are_written(cgroup, tmp_path):
    cgroup.limit(ContainerLimits(memory_bytes=1 << 20, processes=5, cpus=0.5))
    assert {name: (tmp_path / name).read_text() for name in FILES} == {
        "memory.max": "1048576",
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "6",
        "cpu.max": "50000 100000",
    }
    (tmp_path / "memory.events").write_text("low 0\noom 1\noom_kill 0\n", encoding="ascii")
    assert not cgroup.out_of_memory()
    (tmp_path / "memory.events").write_text("low 0\noom 1\noom_kill 2\n", encoding="ascii")
    assert cgroup.out_of_memory()


def test_only_optional_files_may_be_missing(cgroup, tmp_path):
    for name in ("memory.swap.max", "memory.oom.group", "cpu.max"):
        (tmp_path / name).unlink()
    cgroup.limit(ContainerLimits())
    (tmp_path / "pids.max").unlink()
    with pytest.raises(FileNotFoundError):
        cgroup.limit(ContainerLimits())


def test_a_host_without_cgroups_names_the_missing_controllers(tmp_path):
    with pytest.raises(CgroupsUnavailable, match="no cgroup controllers for memory, pids, cpu"):
        detect(tmp_path)


def test_v1_is_refused_where_it_is_not_writable():
    if not Path("/sys/fs/cgroup/memory/cgroup.procs").exists():
        pytest.skip("this host does not have cgroups v1")
    code = (
        "from antwort.sandbox.host import cgroups\n"
        "try: cgroups.detect()\nexcept cgroups.CgroupsUnavailable as error: print(error)"
    )
    command = [sys.executable, "-c", code]
    if os.geteuid() == 0:
        shown = [str(path) for path in {Path(sys.base_prefix), Path(sys.prefix), ROOT}]
        command = [sys.executable, str(DELEGATED.with_name("as_user.py")), str(USER), *shown, "--", *command]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    assert "only root can use" in subprocess.check_output(command, env=environment, text=True)


NO_LIMIT = str((1 << 63) - 4096)  # how v1 represents no limit


@pytest.mark.parametrize(
    "own, files, limit",
    [
        ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": "3000"}, 3000),
        ("0::/a/b", {"a/b/memory.max": "2000", "a/memory.max": "3000", "other/memory.max": "1"}, 2000),
        ("0::/", {"memory.max": "5000"}, 5000),
        ("0::/a", {"a/memory.max": "max"}, None),
        ("4:cpu,memory:/a", {"memory/a/memory.limit_in_bytes": NO_LIMIT, "memory/memory.limit_in_bytes": "7"}, 7),
        ("4:memory:/hidden\n0::/", {"memory/memory.limit_in_bytes": "6000"}, 6000),
        ("4:cpu:/a", {"memory/a/memory.limit_in_bytes": "1"}, None),
        ("4:name=x:y:/a", {}, None),
        ("", {}, None),
    ],
)
def test_memory_limit_is_the_lowest_of_all_cgroups_above(tmp_path, own, files, limit):
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text(f"{text}\n")
    assert cgroups.memory_limit(tmp_path / "tree", tmp_path / "own") == limit
    assert cgroups.memory_limit(tmp_path / "tree", tmp_path / "nowhere") is None
