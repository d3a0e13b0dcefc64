"""Control groups: version 2's files on a directory that looks like one (this kernel may have none to lend)."""

from __future__ import annotations

from antwort.sandbox.cgroups import Version1, Version2, here
from antwort.sandbox.limits import Limits


def test_version_2_writes_what_the_kernel_reads(tmp_path):
    ward = Version2(tmp_path).ward([])
    (directory,) = tmp_path.iterdir()
    ward.limit(Limits(memory_bytes=1 << 20, processes=5, cpus=0.5))
    assert {file.name: file.read_text() for file in directory.iterdir()} == {
        "memory.max": "1048576",
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "6",
        "cpu.max": "50000 100000",
    }
    (directory / "memory.events").write_text("low 0\noom 1\noom_kill 0\n", encoding="ascii")
    assert not ward.out_of_memory()
    (directory / "memory.events").write_text("low 0\noom 1\noom_kill 2\n", encoding="ascii")
    assert ward.out_of_memory()


def test_a_host_without_any_has_none(tmp_path):
    assert here(tmp_path) is None


def test_version_1_is_not_taken_where_it_cannot_be_written(tmp_path):
    for name in ("memory", "pids", "cpu"):
        (tmp_path / name).mkdir()
    assert Version1.here(tmp_path) is None
