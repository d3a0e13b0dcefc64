"""The filter, run by a tiny interpreter of its own instructions: what it lets through on both machines."""

from __future__ import annotations

import errno
import operator
import struct

import pytest

from antwort.sandbox.jail import seccomp, syscalls

ALLOW, KILL = 0x7FFF0000, 0x80000000
NO_SUCH_CALL, REFUSE = 0x50000 | errno.ENOSYS, 0x50000 | errno.EPERM
TESTS = {0x15: operator.eq, 0x25: operator.gt, 0x35: operator.ge, 0x45: lambda a, b: bool(a & b)}


def verdict(machine: int, number: int, *arguments: int, arch: int | None = None, counted: bool = True) -> int:
    arch = (0xC000003E, 0xC00000B7)[machine] if arch is None else arch
    data = struct.pack("<iIQ6Q", number, arch, 0, *[*arguments, *[0] * 6][:6])
    steps = seccomp.program(machine, counted=counted)
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
        assert verdict(machine, number) == (ALLOW if number in allowed else NO_SUCH_CALL), number


@pytest.mark.parametrize("machine", [0, 1])
def test_arguments_decide_where_they_must(machine):
    clone, socket = (syscalls.NUMBERS[name][machine] for name in ("clone", "socket"))
    refused = ((16, 3, 0), (2, 3, 0), (2, 1, 262), (40, 1, 0), (38, 5, 0))
    assert verdict(machine, clone, 17) == ALLOW
    assert verdict(machine, clone, 0x10000000 | 17) == REFUSE
    assert verdict(machine, socket, 2, 1 | 0o2000000, 6) == ALLOW
    assert {verdict(machine, socket, *arguments) for arguments in refused} == {REFUSE}
    assert verdict(machine, syscalls.NUMBERS["ioctl"][machine], 0, 0x5412) == REFUSE


@pytest.mark.parametrize("machine", [0, 1])
def test_memory_that_no_process_shows_is_refused_where_nothing_counts_it(machine):
    mmap = syscalls.NUMBERS["mmap"][machine]
    shared, private, file = 0x21, 0x22, 0x01
    for name in seccomp.UNSEEN:
        assert verdict(machine, syscalls.NUMBERS[name][machine]) == ALLOW
        assert verdict(machine, syscalls.NUMBERS[name][machine], counted=False) == NO_SUCH_CALL
    assert verdict(machine, mmap, 0, 4096, 3, shared) == ALLOW
    seen = [verdict(machine, mmap, 0, 4096, 3, flags, counted=False) for flags in (shared, shared | 2, private, file)]
    assert seen == [REFUSE, REFUSE, ALLOW, ALLOW]


@pytest.mark.parametrize("counted", [True, False])
def test_the_kernel_would_take_the_program(counted):
    steps = seccomp.program(0, counted=counted)
    assert len(seccomp.assembled(counted=counted)) == 8 * len(steps) <= 8 * 4096
    jumps = [(i, yes, no) for i, (code, yes, no, _) in enumerate(steps) if code in TESTS]
    assert all(max(yes, no) < 256 and i + 1 + max(yes, no) < len(steps) for i, yes, no in jumps)
    assert steps[-1][0] == 0x06


def test_other_conventions_are_fatal():
    assert verdict(0, 39, arch=0x40000003) == KILL
    assert verdict(0, 0x40000000 | 39) == KILL
