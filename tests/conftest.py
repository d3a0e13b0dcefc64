"""Settings for all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# Contracts (weakincentives.dbc) are enabled when they are decorated, so this comes before the package is imported.
os.environ.setdefault("WEAKINCENTIVES_DBC", "1")

# A slow machine is not a wrong program, so examples have no deadline; and where nobody can look at a surprise
# the next day, the same examples are tried every time.
settings.register_profile("house", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("house")
