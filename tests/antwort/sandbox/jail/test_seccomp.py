"""Seccomp filter, evaluated by a small BPF interpreter for both machines."""

from __future__ import annotations

import errno
import operator
import struct

import pytest

from antwort.sandbox.jail import seccomp, syscalls

ALLOW, KILL = 0x7FFF0000, 0x80000000
ENOSYS, EPERM = 0x50000 | errno.ENOSYS, 0x50000 | errno.EPERM
TESTS = {0x15: operator.eq, 0x25: operator.gt, 0x35: operator.ge, 0x45: lambda a, b: bool(a & b)}


def evaluate(
    machine: int, number: int, *arguments: int, arch: int | None = None, has_cgroup: bool = True, **options: bool
) -> int:
    arch = (0xC000003E, 0xC00000B7)[machine] if arch is None else arch
    data = struct.pack("<iIQ6Q", number, arch, 0, *[*arguments, *[0] * 6][:6])
    steps = seccomp.program(machine, has_cgroup=has_cgroup, **options)
    accumulator, at = 0, 0
    while True:
        code, yes, no, value = steps[at]
        at += 1
        match code:
            case 0x20:
                accumulator = struct.unpack_from("<I", data, value)[0]
            case 0x54:
                accumulator &= value
            case 0x06:
                return value
            case _:
                at += yes if TESTS[code](accumulator, value) else no


@pytest.mark.parametrize("machine", [0, 1])
def test_exactly_the_listed_calls_are_allowed(machine):
    allowed = set(seccomp.allowed_numbers(machine))
    conditional = {syscalls.NUMBERS[name][machine] for name in ("clone", "socket", "socketpair", "ioctl", "mmap")}
    for number in set(range(600)) - conditional:
        assert evaluate(machine, number) == (ALLOW if number in allowed else ENOSYS), number


@pytest.mark.parametrize("machine", [0, 1])
def test_calls_that_depend_on_their_arguments(machine):
    clone, socket = (syscalls.NUMBERS[name][machine] for name in ("clone", "socket"))
    refused = ((16, 3, 0), (2, 3, 0), (2, 1, 262), (40, 1, 0), (38, 5, 0))
    assert evaluate(machine, clone, 17) == ALLOW
    assert evaluate(machine, clone, 0x10000000 | 17) == EPERM
    assert evaluate(machine, socket, 2, 1 | 0o2000000, 6) == ALLOW
    assert {evaluate(machine, socket, *arguments) for arguments in refused} == {EPERM}
    assert evaluate(machine, syscalls.NUMBERS["ioctl"][machine], 0, 0x5412) == EPERM


@pytest.mark.parametrize("machine", [0, 1])
def test_uncounted_memory_is_refused_without_a_cgroup(machine):
    mmap = syscalls.NUMBERS["mmap"][machine]
    shared, private, file = 0x21, 0x22, 0x01
    for name in seccomp.UNCOUNTED_MEMORY_CALLS:
        assert evaluate(machine, syscalls.NUMBERS[name][machine]) == ALLOW
        assert evaluate(machine, syscalls.NUMBERS[name][machine], has_cgroup=False) == ENOSYS
    assert evaluate(machine, mmap, 0, 4096, 3, shared) == ALLOW
    seen = [
        evaluate(machine, mmap, 0, 4096, 3, flags, has_cgroup=False) for flags in (shared, shared | 2, private, file)
    ]
    assert seen == [EPERM, EPERM, ALLOW, ALLOW]


@pytest.mark.parametrize("machine", [0, 1])
def test_without_namespaces_there_is_no_network_and_no_access_to_other_processes(machine):
    def seen(name: str, *arguments: int, signals_are_scoped: bool = True) -> int:
        number = syscalls.NUMBERS[name][machine]
        return evaluate(machine, number, *arguments, has_namespaces=False, signals_are_scoped=signals_are_scoped)

    assert {seen("socket", family, 1, 0) for family in (1, 2, 10, 16, 17)} == {EPERM}
    assert (seen("socketpair", 1, 1, 0), seen("prlimit64", 0, 7), seen("prlimit64", 1, 7)) == (ALLOW, ALLOW, EPERM)
    for name in seccomp.SIGNAL_CALLS:
        assert (seen(name, 1, 9), seen(name, 1, 9, signals_are_scoped=False)) == (ALLOW, ENOSYS)


@pytest.mark.parametrize("has_cgroup", [True, False])
def test_the_program_is_valid_bpf(has_cgroup):
    steps = seccomp.program(0, has_cgroup=has_cgroup)
    assert len(seccomp.assemble(has_cgroup=has_cgroup)) == 8 * len(steps) <= 8 * 4096
    jumps = [(i, yes, no) for i, (code, yes, no, _) in enumerate(steps) if code in TESTS]
    assert all(max(yes, no) < 256 and i + 1 + max(yes, no) < len(steps) for i, yes, no in jumps)
    assert steps[-1][0] == 0x06


def test_other_calling_conventions_kill_the_process():
    assert evaluate(0, 39, arch=0x40000003) == KILL
    assert evaluate(0, 0x40000000 | 39) == KILL
