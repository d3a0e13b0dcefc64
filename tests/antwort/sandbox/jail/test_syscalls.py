"""System call numbers match the kernel's headers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from antwort.sandbox.jail import syscalls

HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")


@pytest.mark.skipif(not HEADER.exists(), reason="the kernel's headers are not installed")
def test_numbers_match_the_kernel_headers():
    known = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", HEADER.read_text())}
    listed = {name: numbers[0] for name, numbers in syscalls.NUMBERS.items() if name in known}
    assert listed == {name: known[name] for name in listed}
    assert len(listed) > 250


def test_a_failed_call_is_named_in_the_error():
    with pytest.raises(OSError, match="pidfd_open"):
        syscalls.call("pidfd_open", -1, 0)
