"""What is listed, and that the kernel refuses the rest."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from antwort.sandbox.jail import landlock, mounts

NEWEST = 7
TRY = """
import os, sys
from antwort.sandbox.jail import landlock, privileges
inside, outside = sys.argv[1:]
privileges.forbid_new()
landlock.restrict(((inside, landlock.OWN), ("/", landlock.READ_DIR), ("/nowhere/at/all", landlock.READ)))
open(f"{inside}/new", "w").write("x")
os.rename(f"{inside}/new", f"{inside}/renamed")
refused = []
for attempt in (
    lambda: open(f"{outside}/secret"),
    lambda: open(f"{outside}/new", "w"),
    lambda: os.truncate(f"{outside}/secret", 0),
    lambda: os.unlink(f"{outside}/secret"),
    lambda: os.rename(f"{inside}/renamed", f"{outside}/renamed"),
    lambda: os.link(f"{outside}/secret", f"{inside}/link"),
    lambda: os.symlink("x", f"{outside}/symlink"),
    lambda: os.mkdir(f"{outside}/directory"),
    lambda: os.mkfifo(f"{outside}/fifo"),
    lambda: os.kill(os.getppid(), 0),
):
    try: attempt()
    except OSError: refused.append(True)
    else: refused.append(False)
print(*refused)
"""


@pytest.mark.parametrize("abi", range(1, NEWEST + 1))
def test_each_version_handles_what_it_knows(abi):
    handled = landlock.handled(abi)
    assert handled & 0x1FFF == 0x1FFF
    assert bool(handled & landlock.REFER) == (abi >= 2)
    assert bool(handled & landlock.TRUNCATE) == (abi >= 3)
    assert bool(handled & landlock.IOCTL_DEV) == (abi >= 5)


def test_only_the_containers_own_places_can_be_written():
    writable = {path for path, right in landlock.RULES if right & landlock.MAKE_REG}
    assert writable == {mounts.DATA, mounts.TMP, mounts.SHM}


def test_no_rule_allows_making_a_device():
    assert not any(right & (landlock.MAKE_CHAR | landlock.MAKE_BLOCK) for _, right in landlock.RULES)


def test_of_itself_a_process_may_not_read_what_tells_about_the_host():
    names = {path.rpartition("/")[2] for path, _ in landlock.own_process(7)}
    assert not names & {"environ", "mem", "mountinfo", "mounts", "cgroup", "root", "ns", "attr", "oom_score_adj"}


@pytest.mark.skipif(landlock.abi() < 6, reason="this kernel's Landlock is older")
def test_the_kernel_refuses_what_is_not_listed(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "secret").write_text("s")
    python = [sys.executable, "-c", TRY, str(inside), str(outside)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.check_output(python, text=True, env=environment).split() == ["True"] * 10
    assert (outside / "secret").read_text() == "s"
