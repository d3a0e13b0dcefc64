"""Control groups: what is written into them, and, on a real tree of version 2, which are taken and which are not."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from antwort.sandbox import Pool, probe
from antwort.sandbox.host import cgroups
from antwort.sandbox.host.cgroups import NoGroups, here
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
pids = lambda group: {int(pid) for pid in (group / "cgroup.procs").read_text().split()}
groups_below = lambda: [path.name for path in own.iterdir() if path.is_dir()]

class Groups(cgroups.Version2):
    needed = frozenset(os.environ["NEEDED"].split())  # where version 1 has taken memory and pids, what is left
    welcome = frozenset()

def refused(top=None):
    before = pids(own)
    try:
        Groups.here(root, top=top or os.getpid())
    except cgroups.NoGroups as error:
        assert (pids(own), groups_below()) == (before, []), "nobody may have been moved"
        return str(error)
    raise AssertionError("it was taken")
"""


def delegated(code: str, *how: str, uid: int = USER) -> str:
    """What the code prints, run in a group of its own."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a tree of version 2 and make a group in it")
    command = [sys.executable, str(DELEGATED), ",".join(how), str(uid), PRELUDE + textwrap.dedent(code)]
    seen = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if seen.returncode == 77:
        pytest.skip("version 1 has taken every controller of this kernel")
    assert seen.returncode == 0, seen.stderr
    return seen.stdout


USE = """
    groups = Groups.here(root, top=os.getpid())
    assert (groups.moves, pids(own), groups_below()) == (True, {os.getpid()}, []), "to look moves nobody"
    try:
        groups.ward([])
    except OSError as error:
        assert "not claimed" in str(error)
    assert groups_below() == [], "and nothing is left of what failed"
    groups.claim()
    assert (groups.moves, pids(own), pids(leaf)) == (False, set(), {os.getpid()})
    assert set((own / "cgroup.subtree_control").read_text().split()) == Groups.needed
    with subprocess.Popen(["sleep", "60"]) as child:
        ward = groups.ward([child.pid])
        (name,) = [name for name in groups_below() if name != cgroups.LEAF]
        assert pids(own / name) == {child.pid}
        assert not ward.out_of_memory()
        child.kill()
    ward.release()
    again = Groups.here(root, top=os.getpid())  # as a server does that is started anew from within the leaf
    again.claim()
    again.ward([]).release()
    (own / "antwort-1234567-0123").mkdir()  # of a server that was killed
    groups.sweep()
    print(groups_below())
"""


def test_a_group_of_ones_own_is_divided():
    assert delegated(USE, "owned") == "['antwort-server']\n"


def test_so_is_one_that_was_handed_to_root():
    assert delegated(USE, "marked", uid=0) == "['antwort-server']\n"


@pytest.mark.parametrize(
    "how, uid, why",
    [
        ((), 0, "was not handed over to us"),
        ((), USER, "is not ours to divide"),
        (("owned", "shared"), USER, "has 1 other processes in it"),
        (("marked", "shared"), 0, "has 1 other processes in it"),
    ],
    ids=["root's, unmarked", "a stranger's", "a user's, shared", "root's, shared"],
)
def test_any_other_group_is_left_as_it_is(how, uid, why):
    seen = delegated("print(refused())", *how, uid=uid)
    assert why in seen
    assert "Delegate=yes" in seen


def test_one_in_which_too_little_is_counted_is_left_as_it_is():
    code = "Groups.needed = frozenset({'memory', 'surely-none'})\nprint(refused())"
    assert "memory and surely-none are not counted" in delegated(code, "owned")


def test_a_parent_that_we_live_and_die_with_is_one_of_us():
    code = """
        if os.fork() == 0:
            assert "1 other processes" in refused()
            Groups.here(root, top=os.getppid()).claim()
            assert pids(leaf) == {os.getpid(), os.getppid()}
            os._exit(0)
        sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
    """
    delegated(code, "owned")


def test_a_leaf_that_systemd_made_in_what_it_handed_over_is_good_enough():
    code = """
        sub = own / "server"
        sub.mkdir()
        (sub / "cgroup.procs").write_text("0")
        groups = Groups.here(root, top=os.getpid())
        assert not groups.moves
        groups.claim()
        groups.ward([]).release()
        print(groups_below())
    """
    assert delegated(code, "owned", "marked") == "['server']\n"


def test_the_doctor_moves_nobody():
    code = """
        seen = subprocess.run([sys.executable, "-m", "antwort", "doctor"], capture_output=True, text=True, cwd="/tmp")
        assert seen.returncode == 0, seen.stdout + seen.stderr
        print(pids(own) == {os.getpid()}, groups_below())
    """
    assert delegated(code, "marked", uid=0) == "True []\n"


def test_memory_is_counted_where_version_2_has_it():
    code = """
        if not cgroups.Version2.needed <= Groups.needed:
            print("none")
            sys.exit()
        import asyncio
        from dataclasses import replace
        from antwort.sandbox import ContainerLimits, Pool, probe

        async def main():
            host = replace(probe(), groups=cgroups.here())
            async with Pool(host, modules=(), spares=False) as pool:
                container = await pool.create(ContainerLimits(memory_bytes=128 << 20))
                outcome = await container.execute("x = bytearray(b'x') * (300 << 20)", timeout=30)
                print(outcome.reason)
                await container.end("over")
        asyncio.run(main())
    """
    seen = delegated(code, "marked", uid=0)
    if seen == "none\n":
        pytest.skip("version 1 has taken the memory controller of this kernel")
    assert seen == "oom\n"


SPIN = """
import os, time
begun = time.monotonic()
child = os.fork()
while time.monotonic() - begun < 2: pass
if child == 0: os._exit(0)
os.wait()
used = os.times()
print(sum(used[:4]) - before, time.monotonic() - begun)
"""


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_container_gets_its_share_of_the_processors_and_no_more():
    host = probe()
    if host.groups is None:
        pytest.skip(f"no control groups to be had here: {host.why_no_groups}")
    async with Pool(host, modules=(), spares=False) as pool:
        container = await pool.create(ContainerLimits(cpus=0.2))
        group = next(iter(groups_with(container.pids()[-1], ("cpu.cfs_quota_us", "cpu.max"))), None)
        if group is None:
            pytest.skip("processor time is not shared out by groups made here")
        await container.execute("import os; before = sum(os.times()[:4])", timeout=30)
        before = throttled(group)
        outcome = await container.execute(SPIN, timeout=60)
        used, wall = map(float, outcome.stdout.split())
        assert throttled(group) - before >= 5  # of some 20 periods, with two who would take all of each
        assert 0 < used < 1.5 * 0.2 * wall
        await container.end("over")


def groups_with(pid: int, files: tuple[str, ...]) -> list[Path]:
    """The groups of ours that this process is in and that have one of these files."""
    found = []
    for directory, _, names in os.walk(cgroups.ROOT):
        if Path(directory).name.startswith(f"{cgroups.PREFIX}{os.getpid()}-") and set(files) & set(names):
            members = Path(directory, "cgroup.procs").read_text(encoding="ascii").split()
            found += [Path(directory)] if str(pid) in members else []
    return found


def throttled(group: Path) -> int:
    """How many periods ended before their time for it."""
    words = (group / "cpu.stat").read_text(encoding="ascii").split()
    return int(words[words.index("nr_throttled") + 1])


@pytest.fixture
def ward(tmp_path):
    for name in FILES:
        (tmp_path / name).touch()
    return cgroups._Directories([tmp_path], tmp_path / "memory.events", cgroups._version2_files)


def test_version_2_writes_what_the_kernel_reads(ward, tmp_path):
    ward.limit(ContainerLimits(memory_bytes=1 << 20, processes=5, cpus=0.5))
    assert {name: (tmp_path / name).read_text() for name in FILES} == {
        "memory.max": "1048576",
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "6",
        "cpu.max": "50000 100000",
    }
    (tmp_path / "memory.events").write_text("low 0\noom 1\noom_kill 0\n", encoding="ascii")
    assert not ward.out_of_memory()
    (tmp_path / "memory.events").write_text("low 0\noom 1\noom_kill 2\n", encoding="ascii")
    assert ward.out_of_memory()


def test_a_limit_that_every_kernel_has_must_be_there(ward, tmp_path):
    for name in ("memory.swap.max", "memory.oom.group", "cpu.max"):
        (tmp_path / name).unlink()
    ward.limit(ContainerLimits())
    (tmp_path / "pids.max").unlink()
    with pytest.raises(FileNotFoundError):
        ward.limit(ContainerLimits())


def test_a_host_without_any_says_so(tmp_path):
    with pytest.raises(NoGroups, match="none for memory, pids, cpu"):
        here(tmp_path)


def test_version_1_is_not_taken_where_it_cannot_be_written():
    if not Path("/sys/fs/cgroup/memory/cgroup.procs").exists():
        pytest.skip("this host does not have version 1")
    code = (
        "from antwort.sandbox.host import cgroups\ntry: cgroups.here()\nexcept cgroups.NoGroups as error: print(error)"
    )
    command = [sys.executable, "-c", code]
    if os.geteuid() == 0:
        shown = [str(path) for path in {Path(sys.base_prefix), Path(sys.prefix), ROOT}]
        command = [sys.executable, str(DELEGATED.with_name("as_user.py")), str(USER), *shown, "--", *command]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    assert "only root can use" in subprocess.check_output(command, env=environment, text=True)


NO_LIMIT = str((1 << 63) - 4096)  # how version 1 says it


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
def test_the_least_of_all_groups_above_is_what_we_may_have(tmp_path, own, files, limit):
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text(f"{text}\n")
    assert cgroups.memory_limit(tmp_path / "tree", tmp_path / "own") == limit
    assert cgroups.memory_limit(tmp_path / "tree", tmp_path / "nowhere") is None
