"""What holds for every test."""

from __future__ import annotations

import os

from hypothesis import settings

# A slow machine is not a wrong program, so examples have no deadline; and where nobody can look at a surprise
# the next day, the same examples are tried every time.
settings.register_profile("house", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("house")
