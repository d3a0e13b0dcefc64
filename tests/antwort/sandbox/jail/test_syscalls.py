"""The numbers are those of the kernel's headers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from antwort.sandbox.jail import syscalls

HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")


@pytest.mark.skipif(not HEADER.exists(), reason="the kernel's headers are not installed")
def test_the_numbers_are_the_kernels():
    known = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", HEADER.read_text())}
    ours = {name: numbers[0] for name, numbers in syscalls.NUMBERS.items() if name in known}
    assert ours == {name: known[name] for name in ours}
    assert len(ours) > 250


def test_a_failing_call_says_which():
    with pytest.raises(OSError, match="pidfd_open"):
        syscalls.call("pidfd_open", -1, 0)
