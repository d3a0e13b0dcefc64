"""Rlimits are hard, and never above the previous ones."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import resource
from antwort.sandbox.jail import rlimits
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
rlimits.apply(processes=33, file_bytes=1000, data_bytes=None)
for name in ("NPROC", "FSIZE", "CORE", "NOFILE", "SIGPENDING", "MSGQUEUE"):
    soft, hard = resource.getrlimit(getattr(resource, "RLIMIT_" + name))
    assert soft == hard
    print(name, hard)
"""

NOT_LINUX = """
import resource
from antwort.sandbox.jail import rlimits
for name in ("SIGPENDING", "MSGQUEUE", "RTPRIO", "NICE"):
    delattr(resource, "RLIMIT_" + name)
rlimits.apply(processes=33, file_bytes=1000, data_bytes=None)
print(*resource.getrlimit(resource.RLIMIT_FSIZE))
"""


def test_rlimits_that_the_system_lacks_are_skipped():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    seen = subprocess.check_output([sys.executable, "-c", NOT_LINUX], text=True, env=environment)
    assert seen == "1000 1000\n"


def test_every_limit_is_hard():
    # One descriptor less than the limit: the highest is the control channel.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    seen = subprocess.check_output([sys.executable, "-c", SCRIPT], text=True, env=environment).split()
    assert seen == ["NPROC", "33", "FSIZE", "1000", "CORE", "0", "NOFILE", "63", "SIGPENDING", "1024", "MSGQUEUE", "0"]
