"""Landlock: the rules, and that the kernel refuses other access."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from antwort.sandbox.jail import landlock, mounts

NEWEST = 7
SCRIPT = """
import os, sys
from antwort.sandbox.jail import landlock, privileges
inside, outside = sys.argv[1:]
privileges.set_no_new_privs()
landlock.restrict(((inside, landlock.READ_WRITE), ("/", landlock.READ_DIR), ("/nowhere/at/all", landlock.READ)))
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
def test_handled_access_of_each_abi_version(abi):
    handled = landlock.handled_access(abi)
    assert handled & 0x1FFF == 0x1FFF
    assert bool(handled & landlock.REFER) == (abi >= 2)
    assert bool(handled & landlock.TRUNCATE) == (abi >= 3)
    assert bool(handled & landlock.IOCTL_DEV) == (abi >= 5)


def test_only_the_containers_own_directories_are_writable():
    writable = {path for path, right in landlock.RULES if right & landlock.MAKE_REG}
    assert writable == {mounts.DATA, mounts.TMP, mounts.SHM}


def test_no_rule_allows_creating_a_device():
    assert not any(right & (landlock.MAKE_CHAR | landlock.MAKE_BLOCK) for _, right in landlock.RULES)


def test_own_proc_files_that_reveal_the_host_are_not_readable():
    names = {path.rpartition("/")[2] for path, _ in landlock.own_proc_rules(7)}
    assert not names & {"environ", "mem", "mountinfo", "mounts", "cgroup", "root", "ns", "attr", "oom_score_adj"}


@pytest.mark.skipif(landlock.abi() < 6, reason="this kernel's Landlock is older")
def test_the_kernel_refuses_access_that_is_not_listed(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "secret").write_text("s")
    python = [sys.executable, "-c", SCRIPT, str(inside), str(outside)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.check_output(python, text=True, env=environment).split() == ["True"] * 10
    assert (outside / "secret").read_text() == "s"
