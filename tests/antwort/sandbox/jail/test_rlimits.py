"""Limits are hard, and never above what was there before."""

from __future__ import annotations

import os
import subprocess
import sys

TRY = """
import resource
from antwort.sandbox.jail import rlimits
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
rlimits.apply(processes=33, file_bytes=1000, data_bytes=None)
for name in ("NPROC", "FSIZE", "CORE", "NOFILE", "SIGPENDING", "MSGQUEUE"):
    soft, hard = resource.getrlimit(getattr(resource, "RLIMIT_" + name))
    assert soft == hard
    print(name, hard)
"""

ELSEWHERE = """
import resource
from antwort.sandbox.jail import rlimits
for name in ("SIGPENDING", "MSGQUEUE", "RTPRIO", "NICE"):
    delattr(resource, "RLIMIT_" + name)
rlimits.apply(processes=33, file_bytes=1000, data_bytes=None)
print(*resource.getrlimit(resource.RLIMIT_FSIZE))
"""


def test_where_some_limits_do_not_exist_the_others_hold():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    seen = subprocess.check_output([sys.executable, "-c", ELSEWHERE], text=True, env=environment)
    assert seen == "1000 1000\n"


def test_every_limit_is_hard():
    # One file less than there may be: above it stands the channel.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    seen = subprocess.check_output([sys.executable, "-c", TRY], text=True, env=environment).split()
    assert seen == ["NPROC", "33", "FSIZE", "1000", "CORE", "0", "NOFILE", "63", "SIGPENDING", "1024", "MSGQUEUE", "0"]
